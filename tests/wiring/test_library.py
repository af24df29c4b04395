"""What there is, over HTTP: lists, a document's text with a place marked, buckets, deletion, and what a key may see of it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from assay.documents.shapes import DocumentView
from assay.errors import IndexBusy
from assay.index.files import Layout
from tests.wiring.documents_bench import PUMP, Bench, ended, hits, sent, uploaded
from tests.wiring.test_api import error_of

pytestmark = pytest.mark.anyio


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
async def http(bench: Bench) -> AsyncIterator[httpx.AsyncClient]:
    async with bench.working() as found:
        yield found


# ---- deletion -------------------------------------------------------------------------------------------------------


async def test_deletion_while_searching(http: httpx.AsyncClient) -> None:
    files = [(f"{n}.md", f"The pump of day {n} moves water.".encode()) for n in range(6)]
    done = await ended(http, await uploaded(http, "docs", *files))
    gone: set[str] = set()
    stop = False

    async def searching() -> int:
        rounds = 0
        while not stop:
            before = set(gone)
            assert not before & set(await hits(http, "pump water"))
            rounds += 1
        return rounds

    searches = asyncio.create_task(searching())
    for file in done.files[:5]:
        assert (await http.delete(f"/v1/documents/{file.doc_id}")).status_code == 204
        gone.add(file.name)
    stop = True
    assert await searches >= 5
    assert await hits(http, "pump water") == ["5.md"]


async def held(bench: Bench) -> AbstractContextManager[None]:
    """The index, as soon as what comes after a report is done."""
    while True:
        with suppress(IndexBusy), Layout(str(bench.index)).writer():
            return Layout(str(bench.index)).writer()
        await asyncio.sleep(0.01)


async def test_deletion_takes_its_turn(bench: Bench) -> None:
    async with bench.working() as http:
        done = await ended(http, await uploaded(http, "docs", PUMP))
        path = f"/v1/documents/{done.files[0].doc_id}"
        with await held(bench):  # the command writes
            busy = await http.delete(path)
            assert (busy.status_code, error_of(busy)["code"], "retry-after" in busy.headers) == (
                503,
                "index_busy",
                True,
            )
            assert "/" not in error_of(busy)["message"]
        assert (await http.delete(path)).status_code == 204


# ---- lists, and reading ---------------------------------------------------------------------------------------------


async def test_a_list_in_pages(http: httpx.AsyncClient) -> None:
    jobs = [await uploaded(http, f"b{n % 2}", (f"{n}.md", b"Word.")) for n in range(7)]
    for job in jobs:
        await ended(http, job)
    seen: list[str] = []
    after: str | None = None
    while True:
        params: Any = {"limit": 3, **({"after": after} if after else {})}
        page = (await http.get("/v1/documents", params=params)).json()
        assert page["total"] == 7 - (after is not None)
        seen += [row["uri"] for row in page["documents"]]
        if not (after := page["next"]):
            break
        if len(seen) == 3:  # the one at the border goes: the next page is not put out
            await http.delete(f"/v1/documents/{page['documents'][-1]['doc_id']}")
    assert seen == [f"{n}.md" for n in (6, 5, 4, 3, 2, 1, 0)]
    only = (await http.get("/v1/documents", params={"bucket": "b1"})).json()
    assert ([row["uri"] for row in only["documents"]], only["total"], only["next"]) == (
        ["5.md", "3.md", "1.md"],
        3,
        None,
    )
    for params, field in (
        ({"limit": 0}, "limit"),
        ({"limit": 101}, "limit"),
        ({"after": "x"}, "after"),
        ({"after": "1234567890123456789-doc_x"}, "after"),
        ({"bucket": ""}, "bucket"),
    ):
        assert error_of(await http.get("/v1/documents", params=params))["field"] == field
    beyond = await http.get("/v1/documents", params={"after": f"{'9' * 18}-doc_x"})  # a year that Python has not
    assert (beyond.status_code, len(beyond.json()["documents"])) == (200, only["total"] + 3)
    missing = await http.get("/v1/documents", params={"bucket": "b2"})
    assert (missing.status_code, error_of(missing)["allowed"]) == (404, ["b0", "b1"])


LONG = "# Manual\n\nBefore it all.\n\n" + "\n\n".join(
    f"## Part {n}\n\n" + " ".join(f"Sentence {n} of {k} is \U0001f4c4 here." for k in range(30)) for n in range(12)
)


async def read(http: httpx.AsyncClient, doc_id: str, **params: Any) -> DocumentView:
    reply = await http.get(f"/v1/documents/{doc_id}", params=params)
    assert reply.status_code == 200, reply.text
    return DocumentView.model_validate_json(reply.content)


async def test_reading_in_order_with_a_place_marked(http: httpx.AsyncClient) -> None:
    done = await ended(http, await uploaded(http, "docs", ("long.md", LONG.encode())))
    doc_id = done.files[0].doc_id
    whole = await read(http, doc_id, max_chars=200_000)
    text = "".join(part.text for part in whole.parts)
    assert (whole.span, whole.chars, whole.before, whole.after) == ((0, len(text)), len(text), None, None)
    assert all(text[part.span[0] : part.span[1]] == part.text for part in whole.parts)
    assert not any(part.marked for part in whole.parts)
    assert "Manual" in whole.parts[0].heading or whole.parts[0].heading == []
    # A page after the other is the same.
    start: int | None = 0
    pages = []
    while start is not None:
        page = await read(http, doc_id, start=start, max_chars=3000)
        pages.append(page)
        start = page.after
    assert len(pages) > 3 and "".join(part.text for page in pages for part in page.parts) == text
    back = await read(http, doc_id, start=pages[2].before, max_chars=3000)
    assert back.after is not None and back.after >= pages[2].span[0]
    # A span, over the border of two parts.
    edge = whole.parts[5].span[1]
    marked = await read(http, doc_id, span=f"{edge - 7},{edge + 9}", max_chars=3000)
    assert marked.highlight is not None and marked.highlight.span == (edge - 7, edge + 9)
    assert marked.highlight.text == text[edge - 7 : edge + 9] == "".join(p.text for p in marked.parts if p.marked)
    assert marked.span[0] < edge < marked.span[1]
    for number in (5, 8):  # also where what comes before it would fill the page
        inside = whole.parts[number].span
        small = await read(http, doc_id, span=f"{inside[0] + 1},{inside[0] + 4}", max_chars=inside[1] - inside[0] + 50)
        assert any(part.marked for part in small.parts)
    chunk = whole.parts[8]
    by_chunk = await read(http, doc_id, chunk_id=chunk.chunk_id, max_chars=1000)
    assert by_chunk.highlight is not None and by_chunk.highlight.text in chunk.text
    assert by_chunk.highlight.heading == chunk.heading
    found = await http.post("/v1/search", json={"question": "Sentence 7 of 3", "top_k": 1})
    (hit,) = found.json()["hits"]
    at_hit = await read(http, doc_id, chunk_id=hit["chunk_id"])
    assert at_hit.highlight is not None and list(at_hit.highlight.span) == hit["span"]


async def test_a_place_that_is_not_there(http: httpx.AsyncClient) -> None:
    done = await ended(http, await uploaded(http, "docs", PUMP))
    path = f"/v1/documents/{done.files[0].doc_id}"
    places: list[tuple[Any, int, str]] = [
        ({"span": "5"}, 422, "span"),
        ({"span": "9,3"}, 404, "span"),
        ({"span": "3,3"}, 404, "span"),
        ({"span": "900,901"}, 404, "span"),
        ({"chunk_id": 999}, 404, "chunk_id"),
        ({"chunk_id": "x"}, 422, "chunk_id"),
        ({"max_chars": 0}, 422, "max_chars"),
        ({"max_chars": 200_001}, 422, "max_chars"),
        ({"start": -1}, 422, "start"),
    ]
    for params, status, field in places:
        reply = await http.get(path, params=params)
        assert (reply.status_code, error_of(reply)["field"]) == (status, field), params
    assert (await http.get(path, params={"span": "3,99999"})).status_code == 200
    assert (await http.get(path, params={"start": 99999})).status_code == 200


# ---- keys -----------------------------------------------------------------------------------------------------------


async def test_scopes_and_buckets_of_a_key(bench: Bench) -> None:
    async with bench.working() as http:
        ours, theirs = bench.key(["ours"]), bench.key(["theirs"], tenant="b")
        done = await ended(http, await uploaded(http, "ours", PUMP, headers=ours), ours)
        secret = await ended(
            http, await uploaded(http, "theirs", ("secret.md", b"The marker."), headers=theirs), theirs
        )

        async def told(bucket: str, doc_id: str, job_id: str) -> list[tuple[int, str]]:
            replies = [
                await http.post("/v1/documents", params={"bucket": bucket}, files=sent(PUMP), headers=ours),
                await http.get("/v1/documents", params={"bucket": bucket}, headers=ours),
                await http.get(f"/v1/documents/{doc_id}", headers=ours),
                await http.delete(f"/v1/documents/{doc_id}", headers=ours),
                await http.get(f"/v1/documents/jobs/{job_id}", headers=ours),
                await http.get(f"/v1/documents/jobs/{job_id}/events", headers=ours),
            ]
            hide = {bucket: "B", doc_id: "D", job_id: "J"}
            texts = []
            for reply in replies:
                text = reply.text.replace(reply.headers["x-request-id"], "")
                for word, letter in hide.items():
                    text = text.replace(word, letter)
                texts.append((reply.status_code, text))
            return texts

        hidden = await told("theirs", secret.files[0].doc_id, secret.id)
        missing = await told("never", "doc_" + "0" * 20, "job_" + "0" * 26)
        assert hidden == missing and {status for status, _ in hidden} == {404}
        names = [row["name"] for row in (await http.get("/v1/buckets", headers=ours)).json()["buckets"]]
        listed = (await http.get("/v1/documents", headers=ours)).json()
        assert (names, listed["total"], [row["uri"] for row in listed["documents"]]) == (["ours"], 1, ["pump.md"])
        assert (await http.get(f"/v1/documents/{secret.files[0].doc_id}", headers=theirs)).status_code == 200
        # A key of the same tenant that sees something else has other jobs; one that sees the same has the same.
        assert (await http.get(f"/v1/documents/jobs/{done.id}", headers=bench.key(["ours", "x"]))).status_code == 404
        assert (await http.get(f"/v1/documents/jobs/{done.id}", headers=bench.key(["ours"]))).status_code == 200
        # Scopes.
        reads, writes = bench.key(["ours"], scopes=["search"]), bench.key(["ours"], scopes=["ingest"])
        path, job = f"/v1/documents/{done.files[0].doc_id}", f"/v1/documents/jobs/{done.id}"
        for headers, may in ((reads, ("GET", path)), (reads, ("GET", "/v1/documents")), (writes, ("GET", job)),
                             (reads, ("GET", "/v1/buckets")), (writes, ("GET", "/v1/buckets"))):  # fmt: skip
            assert (await http.request(*may, headers=headers)).status_code == 200, may
        for headers, way in ((reads, ("POST", "/v1/documents?bucket=ours")), (reads, ("DELETE", path)), (reads, ("GET", job)),
                             (writes, ("GET", path)), (writes, ("GET", "/v1/documents"))):  # fmt: skip
            assert (await http.request(*way, headers=headers)).status_code == 403, way
        assert (await http.delete(path, headers=writes)).status_code == 204


async def test_a_name_tells_nothing_of_what_the_key_does_not_see(bench: Bench) -> None:
    """Under the name of a hidden document an upload is another one: neither replaced, nor told of, nor compared with it."""
    async with bench.working() as http:
        hr, plain = bench.key(["docs"], groups=("hr",)), bench.key(["docs"])
        secret = ("pay.md", b"---\nallowed_groups: hr\n---\n# Pay\n\nThe pay is secret.")
        theirs = (await ended(http, await uploaded(http, "docs", secret, headers=hr), hr)).files[0]
        path = f"/v1/documents/{theirs.doc_id}"
        assert (await http.get(path, headers=hr)).status_code == 200
        for method in ("GET", "DELETE"):
            assert (await http.request(method, path, headers=plain)).status_code == 404
        assert (await http.get("/v1/buckets", headers=plain)).json()["buckets"] == []
        assert (await http.get("/v1/documents?bucket=docs", headers=plain)).status_code == 404
        for content, outcome in ((secret[1][35:], "ingested"), (secret[1][35:], "unchanged"), (b"Mine.", "replaced")):
            mine = (await ended(http, await uploaded(http, "docs", ("pay.md", content), headers=plain), plain)).files[0]
            assert (mine.outcome, mine.doc_id != theirs.doc_id) == (outcome, True)
        listed = (await http.get("/v1/documents", headers=plain)).json()
        assert [row["doc_id"] for row in listed["documents"]] == [mine.doc_id]
        (bucket,) = (await http.get("/v1/buckets", headers=plain)).json()["buckets"]
        assert (bucket["documents"], bucket["facets"]["format"]["values"][0]["count"]) == (1, 1)
        assert (await http.get("/v1/documents", headers=hr)).json()["total"] == 2
        assert "secret" in (await http.get(path, headers=hr)).text
        narrowed = {**hr, "x-assay-groups": ""}
        assert (await http.get(path, headers=narrowed)).status_code == 404
