"""Who may ask, decided from a request's headers before its body is read: key, scope, rate and concurrency.

Where there are no keys, this machine alone is served.
"""

import math
import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as Connection

from assay import groups
from assay.access import LOCAL, BoundDriver, Forbidden, Grant, RateLimited, Scope, Unauthorized, is_loopback
from assay.audit import Audit, Trail
from assay.errors import AssayError, InvalidRequest
from assay.keys import Keyring
from assay.ports import Driver
from deployments import haproxy
from deployments.page import is_page
from deployments.problems import body_of, response_of
from deployments.sse import until_last

GROUPS_HEADER = "x-assay-groups"
OPEN = ("/healthz", "/readyz", "/openapi.json")
# What a route needs, by how its path begins, and where it says one by its method; None: any key. The first that fits counts;
# what is not here needs admin.
NEEDS: tuple[tuple[str, Scope | None], ...] = (
    ("/v1/documents/jobs", "ingest"),
    ("GET /v1/documents", "search"),
    ("/v1/documents", "ingest"),
    ("/v1/buckets", None),
    ("/v1/answers", "ask"),
    ("/v1/chat/", "ask"),
    ("/v1/conversations", "ask"),
    ("/v1/streams", "ask"),
    ("/v1/search", "search"),
    ("/v1/models", None),
    ("/v1/tools", None),
    ("/mcp", None),
)
# Of a question that holds its permit already: a key of one request at a time may come back to it, also while the connection
# that broke still looks open from here.
LISTENS, ENDS = "GET /v1/streams/", "DELETE /v1/streams/"
LISTENERS = 2  # for each request that a key may have in progress


@dataclass(slots=True)
class Count:
    now: int = 0


@dataclass(slots=True)
class Meter:
    """One key's use of one replica: a bucket of ``rate`` tokens that a minute fills, and what is in progress."""

    tokens: float
    at: float
    running: Count = field(default_factory=Count)
    listening: Count = field(default_factory=Count)


class Permit:
    """One of the requests that a key may have in progress: until the request ends, and whoever else holds it has let it go."""

    def __init__(self, count: Count) -> None:
        self._count, self._holders = count, 0
        count.now += 1

    @contextmanager
    def held(self) -> Iterator[None]:
        self._holders += 1
        try:
            yield
        finally:
            self._holders -= 1
            if self._holders == 0:
                self._count.now -= 1


class Gate:
    def __init__(
        self, app: ASGIApp, keyring: Keyring, audit: Audit, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.app, self._keyring, self._audit, self._clock = app, keyring, audit, clock
        self._meters: dict[str, Meter] = {}

    async def __call__(self, scope: Connection, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        trail: Trail = scope["state"]["trail"]
        if _path(scope) in OPEN or is_page(_path(scope)):
            trail.drop()
            await self.app(scope, receive, send)
            return
        try:
            self._audit.check()
            grant = _among(scope, self._granted(scope))
            trail.note(key=grant.key_id, tenant=grant.tenant, groups=grant.groups)
            _check_scope(scope, grant)
            permit = self._permit(grant, f"{scope['method']} {_path(scope)}") if grant.key_id else None
        except AssayError as fault:
            trail.refused()
            trail.note(error=fault.code)
            await self._refuse(fault, scope, receive, send)
            return
        scope["state"] |= {"grant": grant, "permit": permit}
        with until_last(held(permit), send) as send:
            await self.app(scope, receive, send)

    def _granted(self, scope: Connection) -> Grant:
        scheme, _, text = Headers(scope=scope).get("authorization", "").partition(" ")
        if self._keyring.open:
            if not haproxy.tells_clients():
                raise Forbidden(
                    "Without API keys this machine alone is served, and Serve's HAProxy hides who asks: ADR 0023."
                )
            if not _is_local(scope):
                raise Forbidden("This service has no API keys yet, and so serves its own machine alone.")
            if not _by_its_name(scope):
                raise Forbidden("Without API keys this service is asked as localhost, and not by another site's page.")
            return LOCAL
        grant = self._keyring.grant(text.strip()) if scheme.lower() == "bearer" else None
        if grant is None:
            raise Unauthorized("Send a valid API key, as the header 'Authorization: Bearer assay_...'.")
        return grant

    def _permit(self, grant: Grant, what: str) -> Permit:
        now = self._clock()
        meter = self._meters.setdefault(grant.key_id, Meter(grant.rate, now))
        meter.tokens = min(grant.rate, meter.tokens + (now - meter.at) * grant.rate / 60)
        meter.at = now
        if meter.tokens < 1:
            seconds = math.ceil((1 - meter.tokens) * 60 / grant.rate)
            raise _Wait(f"This key may send {grant.rate} requests a minute; try again in {seconds} s.", seconds)
        most, count, kind = grant.concurrency, meter.running, "requests in progress"
        if what.startswith(LISTENS):
            most, count, kind = LISTENERS * most, meter.listening, "streams taken up"
        elif what.startswith(ENDS):  # it makes room
            count = Count()
        if count.now >= most:
            raise _Wait(f"This key may have {most} {kind}; try again when one is done.", 1)
        meter.tokens -= 1
        return Permit(count)

    async def _refuse(self, fault: AssayError, scope: Connection, receive: Receive, send: Send) -> None:
        headers = {"www-authenticate": "Bearer"} if fault.status == 401 else {}
        if isinstance(fault, _Wait):
            headers["retry-after"] = str(fault.seconds)
        body = body_of(fault, scope["state"]["request_id"])
        await response_of(body, headers, _path(scope))(scope, receive, send)


def needed(method: str, path: str) -> Scope | None:
    """The scope of a request. Raises ``LookupError`` where no line of ``NEEDS`` is of it."""
    ways = (path, f"{method} {path}")
    for way, need in NEEDS:
        if any(each.startswith(way) for each in ways):
            return need
    raise LookupError(path)


def _check_scope(scope: Connection, grant: Grant) -> None:
    try:
        need = needed(scope["method"], _path(scope))
    except LookupError:
        need = "admin"
    if need is not None and not grant.may(need):
        raise Forbidden(f"This key may not do this: it lacks the scope '{need}'.", allowed=tuple(sorted(grant.scopes)))


def _among(scope: Connection, grant: Grant) -> Grant:
    """For whom a service asks: its end user's groups, of which those count that the key holds too."""
    said = Headers(scope=scope).getlist(GROUPS_HEADER)
    if not said:
        return grant
    names = groups.listed(said[0])
    if len(said) > 1 or len(names) > groups.MOST or not all(re.fullmatch(groups.NAME, name) for name in names):
        raise InvalidRequest("Send the names of groups in one header, with commas between them.", GROUPS_HEADER)
    return grant.among(names)


class _Wait(RateLimited):
    def __init__(self, message: str, seconds: int) -> None:
        super().__init__(message)
        self.seconds = seconds


def held(permit: Permit | None) -> AbstractContextManager[None]:
    """A key's permit, kept for as long as this is open; there is none where there are no keys."""
    return permit.held() if permit else nullcontext()


def bound(driver: Driver, request: Request) -> BoundDriver:
    """The driver for whoever sent the request."""
    return BoundDriver(driver, request.state.grant, request.state.trail)


def _path(scope: Connection) -> str:
    """As the routes are written, wherever the app is mounted."""
    return str(scope["path"]).removeprefix(scope.get("root_path", ""))


def _by_its_name(scope: Connection) -> bool:
    """A page of another site, open in a browser here, could have its own name lead to this machine: the name in ``Host`` (and
    the ``Origin``, where there is one) must then be this machine's. A browser that asks for another site's page says so, also
    where it sends no ``Origin``."""
    headers = Headers(scope=scope)
    hosts, origins = headers.getlist("host"), headers.getlist("origin")
    names = [*(_host(f"//{name}") for name in hosts), *map(_host, origins)]
    return bool(hosts) and all(map(is_loopback, names)) and headers.get("sec-fetch-site") != "cross-site"


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _is_local(scope: Connection) -> bool:
    """A connection from this machine; over a Unix socket there is no address."""
    client = scope.get("client")
    if not client or not client[0]:
        server = scope.get("server")
        return server is not None and server[1] is None
    return is_loopback(client[0])
