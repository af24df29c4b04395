"""The web is read without reaching what is not of it: every hop's host is resolved and every address must be public."""

import json
from collections.abc import Callable, Mapping, Sequence

import httpx
import pytest

from assay.bound import BoundRetriever
from assay.config import WebConfig
from assay.errors import AssayError, InvalidRequest, SetupError, StageUnavailable
from assay.tools import ToolContext
from assay.tools.fetch import MOST_BYTES, Fetcher, is_odd, is_public
from assay.tools.web import WebSearch
from assay.types import Scope
from tests.fakes import ListRetriever

pytestmark = pytest.mark.anyio

PUBLIC = "93.184.215.14"
INTERNAL = {
    "169.254.169.254", "127.0.0.1", "10.0.0.5", "172.16.3.4", "192.168.1.1", "100.64.0.1", "0.0.0.0", "224.0.0.1",
    "::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "::ffff:127.0.0.1", "::ffff:10.0.0.5",
    "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "::127.0.0.1", "no address",
    "::ffff:0:7f00:1", "64:ff9b:1::a9fe:a9fe", "fec0::1", "3fff::1", "5f00::1", "4000::1", "192.88.99.1", "192.0.0.8",
    "2001:0:7f00:1::1", "2001:db8::1", "240.0.0.1", "255.255.255.255", "ff02::1",
}  # fmt: skip

Answer = Callable[[httpx.Request], httpx.Response]


def fetcher(answer: Answer, hosts: Mapping[str, Sequence[str]] | None = None, trusted: str | None = None) -> Fetcher:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return (hosts or {}).get(host, (PUBLIC,))

    return Fetcher(2, trusted=trusted, resolve=resolve, transport=httpx.MockTransport(answer))


def fine(request: httpx.Request) -> httpx.Response:
    return httpx.Response(200, content=b"fine")


def to(location: str) -> Answer:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.headers["host"] == "start.example":
            return httpx.Response(302, headers={"location": location})
        return httpx.Response(200, content=b"arrived")

    return answer


@pytest.mark.parametrize("address", sorted(INTERNAL))
async def test_no_internal_address_is_reached(address: str) -> None:
    assert not is_public(address)
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return fine(request)

    with pytest.raises(InvalidRequest, match="public internet"):
        await fetcher(answer, {"evil.example": (address,)}).get("http://evil.example/")
    with pytest.raises(InvalidRequest):  # one public address beside it does not make it one
        await fetcher(answer, {"evil.example": (PUBLIC, address)}).get("http://evil.example/")
    assert asked == []


@pytest.mark.parametrize("host", ["2130706433", "0x7f.1", "0x7f000001", "127.1", "010.0.0.1", "1.2.3.4.5"])
async def test_numbers_in_disguise_are_refused(host: str) -> None:
    assert is_odd(host)
    with pytest.raises(InvalidRequest):
        await fetcher(fine).get(f"http://{host}/")


@pytest.mark.parametrize("host", ["example.org", "1.2.3.4", "a1.example", "xn--bcher-kva.example", "7.example"])
def test_names_and_addresses_are_no_disguise(host: str) -> None:
    assert not is_odd(host)


@pytest.mark.parametrize(
    "location",
    [
        "http://169.254.169.254/latest/meta-data/", "//inside.example/", "http://2852039166/", "http://user@start.example/",
        "file:///etc/passwd", "ftp://start.example/", "http://[::1]/", "http://0/",
    ],
)  # fmt: skip
async def test_a_redirect_is_checked_like_the_first_hop(location: str) -> None:
    hosts = {"inside.example": ("10.0.0.5",), "169.254.169.254": ("169.254.169.254",), "::1": ("::1",)}
    with pytest.raises(InvalidRequest):
        await fetcher(to(location), hosts).get("http://start.example/")


async def test_redirects_among_public_hosts_are_followed_so_far() -> None:
    assert await fetcher(to("https://end.example/x")).get("http://start.example/") == b"arrived"
    with pytest.raises(StageUnavailable, match="redirects"):
        await fetcher(to("http://start.example/again")).get("http://start.example/")


async def test_the_connection_goes_to_the_address_that_was_checked() -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return fine(request)

    await fetcher(answer).get("https://name.example:8443/path?q=1")
    (request,) = seen
    assert (request.url.host, request.url.port, request.headers["host"]) == (PUBLIC, 8443, "name.example:8443")
    assert request.extensions["sni_hostname"] == "name.example"


@pytest.mark.parametrize("address", [PUBLIC, "2606:4700::1111", "64:ff9b::5db8:d70e", "8.8.8.8"])
def test_the_open_internet_is_public(address: str) -> None:
    assert is_public(address)


async def test_an_international_name_is_looked_up_as_it_is_sent() -> None:
    asked: list[str] = []

    async def resolve(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        return (PUBLIC,)

    await Fetcher(2, resolve=resolve, transport=httpx.MockTransport(fine)).get("http://xn--strae-oqa.example/")
    assert asked == ["xn--strae-oqa.example"]


async def test_a_dead_address_is_followed_by_the_next() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.host == PUBLIC:
            raise httpx.ConnectError("dead")
        return fine(request)

    assert await fetcher(answer, {"two.example": (PUBLIC, "8.8.8.8")}).get("http://two.example/") == b"fine"
    with pytest.raises(StageUnavailable):
        await fetcher(answer, {"one.example": (PUBLIC,)}).get("http://one.example/")


async def test_a_key_does_not_follow_a_redirect_to_another_origin() -> None:
    seen: dict[str, str | None] = {}

    def answer(request: httpx.Request) -> httpx.Response:
        seen[request.headers["host"]] = request.headers.get("authorization")
        return to("https://other.example/")(request)

    await fetcher(answer).get("http://start.example/", {"authorization": "Bearer s"})
    assert seen == {"start.example": "Bearer s", "other.example": None}


async def test_an_endpoint_of_the_config_may_be_private_and_its_redirects_may_not() -> None:
    hosts = {"start.example": ("10.0.0.5",), "inside.example": ("10.0.0.6",)}
    own = "http://start.example/"
    assert await fetcher(fine, hosts, trusted=own).get(own) == b"fine"
    with pytest.raises(InvalidRequest):
        await fetcher(to("http://inside.example/"), hosts, trusted=own).get(own)
    with pytest.raises(InvalidRequest):
        await fetcher(to("http://start.example/x"), hosts, trusted=own).get(own)


async def test_a_body_is_bounded_and_a_fault_is_one() -> None:
    def large(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=b"x" * (MOST_BYTES + 1))

    def wrong(request: httpx.Request) -> httpx.Response:
        return httpx.Response(500)

    def broken(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("no")

    for answer in (large, wrong, broken):
        with pytest.raises(StageUnavailable):
            await fetcher(answer).get("http://a.example/")


# ---- web_search -----------------------------------------------------------------------------------------------------

FOUND = {
    "results": [
        {"url": "https://a.example/1", "title": "Tides", "content": "The Moon  causes the tides.", "engine": "x"},
        {"url": "javascript:alert(1)", "title": "bad", "content": "bad"},
        {"url": "https://a.example/2", "title": "empty", "content": "  "},
        {"url": "https://a.example/3", "title": None, "content": None},
    ]
}
CONFIG = WebConfig(endpoint="https://search.example/s?lang=en")


def web(answer: Answer, config: WebConfig = CONFIG) -> WebSearch:
    return WebSearch(config, fetcher(answer))


CONTEXT = ToolContext(BoundRetriever(ListRetriever(), Scope()))


async def test_what_the_web_says_is_marked_and_cited_by_its_address() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        assert dict(request.url.params) == {"lang": "en", "q": "tides & moon", "format": "json"}
        return httpx.Response(200, json=FOUND)

    output = await web(answer).call({"query": "tides & moon"}, CONTEXT)
    (hit,) = output.hits
    assert (hit.chunk.untrusted, hit.chunk.uri, hit.chunk.text) == (
        True,
        "https://a.example/1",
        "The Moon causes the tides.",
    )
    assert hit.chunk.id < 0 and "strangers" in output.note


@pytest.mark.parametrize("body", [b"<html>", b"[]", json.dumps({"results": [{"title": "no url"}]}).encode()])
async def test_another_shape_is_a_fault_and_not_an_empty_list(body: bytes) -> None:
    with pytest.raises(AssayError, match="shape"):
        await web(lambda _: httpx.Response(200, content=body)).call({"query": "tides"}, CONTEXT)


@pytest.mark.parametrize("host", ["127.0.0.1", "10.1.2.3", "localhost", "[::1]"])
def test_a_private_endpoint_is_said_to_be_one(host: str) -> None:
    endpoint = f"http://{host}:8888/search"
    with pytest.raises(SetupError, match="private_endpoint"):
        WebSearch(WebConfig(endpoint=endpoint))
    WebSearch(WebConfig(endpoint=endpoint, private_endpoint=True))


def test_a_key_that_is_not_there_is_said_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with pytest.raises(SetupError, match="NO_SUCH_KEY"):
        WebSearch(CONFIG.model_copy(update={"key_env": "NO_SUCH_KEY"}))
