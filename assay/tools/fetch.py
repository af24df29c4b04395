"""Reading from the web without reaching what is not of it: each hop's host is resolved, every address that it resolves to
must be public, and the connection goes to the address that was checked, so that a second look-up cannot change it.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence

import httpx

from assay.errors import InvalidRequest, StageTimeout, StageUnavailable

MOST_HOPS = 3
MOST_BYTES = 1_000_000
_REDIRECTS = (301, 302, 303, 307, 308)

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


async def resolve(host: str, port: int) -> list[str]:
    """The addresses of a host, as connecting to it would find them: also of ``2130706433`` and ``0x7f.1``."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise StageUnavailable(f"The host {host[:80]} cannot be resolved.") from None
    return list(dict.fromkeys(str(info[4][0]) for info in found))


def is_public(address: str) -> bool:
    """Whether an address is one of the open internet, whatever form hides it: mapped, 6to4, Teredo, NAT64."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    return all(each.is_global and not each.is_multicast for each in (parsed, *_inside(parsed)))


def _inside(address: Address) -> list[Address]:
    """The IPv4 addresses that an IPv6 one leads to."""
    if isinstance(address, ipaddress.IPv4Address):
        return []
    found: list[Address | None] = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    packed = address.packed
    if packed[:12] in (bytes(12), bytes.fromhex("0064ff9b") + bytes(8)):
        found.append(ipaddress.IPv4Address(packed[12:]))
    return [each for each in found if each is not None]


def is_odd(host: str) -> bool:
    """A host that is a number in another form than an address is written in: ``2130706433``, ``0x7f.1``, ``010.0.0.1``."""
    last = host.rstrip(".").rpartition(".")[2].casefold()
    if not (last.isdigit() or last.startswith("0x")):
        return False
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return True
    return False


class Fetcher:
    """GET of public addresses. ``trusted``: an origin that may be private, because the config names it; no redirect may
    lead to one that is. Environment proxies are not used: behind one, nobody knows what is reached."""

    def __init__(
        self,
        timeout_s: float,
        *,
        trusted: str | None = None,
        resolve: Resolve = resolve,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._timeout_s, self._resolve = timeout_s, resolve
        self._trusted = None if trusted is None else _origin(httpx.URL(trusted))
        self._client = httpx.AsyncClient(
            timeout=timeout_s, trust_env=False, follow_redirects=False, transport=transport
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def get(self, url: str, headers: Mapping[str, str] | None = None) -> bytes:
        """The body. ``headers`` go to the first origin alone.

        Raises ``InvalidRequest`` for an address that may not be reached, ``StageUnavailable`` and ``StageTimeout``.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._follow(httpx.URL(url), dict(headers or {}))
        except TimeoutError:
            raise StageTimeout(f"timeout after {self._timeout_s:.1f} s") from None
        except httpx.InvalidURL:
            raise InvalidRequest("The address is no URL.", "url") from None
        except httpx.HTTPError as error:
            raise StageUnavailable(f"The web cannot be read: {type(error).__name__}.") from None

    async def _follow(self, url: httpx.URL, headers: dict[str, str]) -> bytes:
        first = _origin(url)
        for hop in range(MOST_HOPS + 1):
            private = hop == 0 and first == self._trusted
            address = await self._address(url, private)
            own = headers if _origin(url) == first else {}
            request = self._client.build_request(
                "GET",
                url.copy_with(host=address),
                headers={"user-agent": "assay", "accept-encoding": "identity", **own, "host": url.netloc.decode()},
                extensions={"sni_hostname": url.host},
            )
            response = await self._client.send(request, stream=True)
            try:
                if response.status_code not in _REDIRECTS or "location" not in response.headers:
                    return await _body(response)
                url = url.join(response.headers["location"])
            finally:
                await response.aclose()
        raise StageUnavailable(f"More than {MOST_HOPS} redirects.")

    async def _address(self, url: httpx.URL, private: bool) -> str:
        if url.scheme not in ("http", "https") or not url.host or url.userinfo:
            raise InvalidRequest("Only plain http and https addresses are read.", "url")
        if is_odd(url.host):
            raise InvalidRequest("The host is a number in disguise.", "url")
        addresses = await self._resolve(url.host, url.port or (443 if url.scheme == "https" else 80))
        if not addresses or not (private or all(map(is_public, addresses))):
            raise InvalidRequest("The host is not one of the public internet.", "url")
        return addresses[0]


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


async def _body(response: httpx.Response) -> bytes:
    if response.status_code != 200:
        raise StageUnavailable(f"The web answers with HTTP {response.status_code}.")
    if response.headers.get("content-encoding", "identity") != "identity":
        raise StageUnavailable("The web answers in an encoding that was not asked for.")
    body = b""
    async for piece in response.aiter_bytes():
        body += piece
        if len(body) > MOST_BYTES:
            raise StageUnavailable(f"The web answers with more than {MOST_BYTES} bytes.")
    return body
