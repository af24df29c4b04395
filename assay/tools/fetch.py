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

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


async def resolve(host: str, port: int) -> list[str]:
    """The addresses of a host, as connecting to it would find them: also of ``2130706433`` and ``0x7f.1``."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise StageUnavailable(f"The host {host[:80]} cannot be resolved.") from None
    return list(dict.fromkeys(str(info[4][0]) for info in found))


# What Python 3.11 takes for global and is not of the open internet: addresses for relays and for documentation.
_KEPT = tuple(map(ipaddress.ip_network, ("192.0.0.0/24", "192.88.99.0/24", "2001::/23", "2002::/16", "3fff::/20")))
_UNICAST = ipaddress.IPv6Network("2000::/3")  # all that was ever given out of IPv6
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


def is_public(address: str) -> bool:
    """Whether an address is one of the open internet, whatever form hides it: mapped, translated, relayed."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(parsed, ipaddress.IPv6Address) and parsed in _NAT64:
        parsed = ipaddress.IPv4Address(parsed.packed[12:])
    if isinstance(parsed, ipaddress.IPv6Address) and parsed not in _UNICAST:
        return False
    kept = any(parsed in network for network in _KEPT if network.version == parsed.version)
    return parsed.is_global and not kept and not (parsed.is_multicast or parsed.is_reserved)


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
        # A kept connection would be given to another host of the same address, whose certificate nobody has looked at.
        limits = httpx.Limits(max_keepalive_connections=0)
        self._client = httpx.AsyncClient(
            timeout=timeout_s, trust_env=False, follow_redirects=False, transport=transport, limits=limits
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
            addresses = await self._addresses(url, private)
            response = await self._sent(url, addresses, headers if _origin(url) == first else {})
            try:
                if response.status_code not in _REDIRECTS or "location" not in response.headers:
                    return await _body(response)
                url = url.join(response.headers["location"])
            finally:
                await response.aclose()
        raise StageUnavailable(f"More than {MOST_HOPS} redirects.")

    async def _sent(self, url: httpx.URL, addresses: Sequence[str], headers: Mapping[str, str]) -> httpx.Response:
        """From the first address that a connection can be made to."""
        sent = {"user-agent": "assay", "accept-encoding": "identity", **headers, "host": url.netloc.decode()}
        for place, address in enumerate(addresses, 1):
            to, named = url.copy_with(host=address), {"sni_hostname": _name(url)}
            request = self._client.build_request("GET", to, headers=sent, extensions=named)
            try:
                return await self._client.send(request, stream=True)
            except httpx.ConnectError:
                if place == len(addresses):
                    raise
        raise StageUnavailable("The host has no address.")

    async def _addresses(self, url: httpx.URL, private: bool) -> Sequence[str]:
        if url.scheme not in ("http", "https") or not url.host or url.userinfo:
            raise InvalidRequest("Only plain http and https addresses are read.", "url")
        if is_odd(_name(url)):
            raise InvalidRequest("The host is a number in disguise.", "url")
        addresses = await self._resolve(_name(url), url.port or (443 if url.scheme == "https" else 80))
        if not addresses or not (private or all(map(is_public, addresses))):
            raise InvalidRequest("The host is not one of the public internet.", "url")
        return addresses


def _name(url: httpx.URL) -> str:
    """As it goes over the wire: decoded, an international name would be encoded again by other rules, to another name."""
    return url.raw_host.decode("ascii")


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
