"""Fields that a model reads out of documents as they are ingested: over a real index, and through the command."""

import asyncio
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

from assay.cli.buckets import buckets
from assay.cli.ingest import ingest
from assay.config import ExtractionConfig
from assay.errors import StageUnavailable
from assay.index.buckets import BucketSchema, FieldSchema
from assay.index.extract import Document, Extraction, Extractor
from assay.index.files import Layout
from assay.index.ingest import Ingestion, Report, find_sources
from assay.index.metadata import Given, MetadataTable
from assay.schemas import Predicate
from assay.types import CompletionRequest, SearchQuery
from tests.fakes import ScriptedLLM, WordTokenizer
from tests.openai_server import OpenAIServer
from tests.unit.index.fakes import WordEncoder
from tests.wiring.index.builders import DirectParser, found, retriever, search, write

FILES = {
    "a.md": "# Supply\n\nBetween Acme and Bolt, on May 25, 1999, for 30 units.",
    "b.md": "# Lease\n\nBetween Zeta and Yota, on June 1, 2001, for 12 rooms.",
}
SCHEMA = {
    "seller": {"type": "text", "extract": True, "description": "who sells or lets"},
    "signed": {"type": "date", "extract": True},
    "units": {"type": "number"},
}
SAID = {"Supply": {"seller": "Acme", "signed": "1999-05-25"}, "Lease": {"seller": "Zeta", "signed": "2001-06-01"}}


def schema(**changed: Any) -> BucketSchema:
    return BucketSchema.model_validate({"fields": {**SCHEMA, **changed}})


def answer(said: Mapping[str, Mapping[str, object]]) -> Any:
    """By the document's title, the fields that are asked."""

    def script(request: CompletionRequest) -> str:
        title = request.messages[1].content.split("\n")[0].removeprefix("Title: ")
        assert request.json_schema is not None
        return json.dumps({name: said[title].get(name) for name in json.loads(request.json_schema)["required"]})

    return script


def run(folder: Path, index: Path, wanted: BucketSchema, *script: Any, table: Path | None = None) -> tuple[Report, int]:
    """The report, and how often the model was asked."""
    llm, encoder, sources = ScriptedLLM(*script), WordEncoder(), find_sources([folder], folder)
    extractor = Extractor(llm, WordTokenizer(), ExtractionConfig())

    def extract(asked: Sequence[tuple[Document, Mapping[str, FieldSchema]]]) -> Sequence[Extraction]:
        return asyncio.run(extractor.extract(asked))

    given = Given([source.path for source in sources], MetadataTable(table) if table else None)
    ingestion = Ingestion(
        Layout(str(index)), "docs", sources, encoder, encoder.embed_now, DirectParser(), schema=wanted, given=given,
        extract=extract,
    )  # fmt: skip
    return ingestion.run(), len(llm.history)


def outcomes(report: Report) -> dict[str, str]:
    return {row.uri: row.outcome for row in report.rows}


def by_seller(index: Path, seller: str) -> list[str]:
    where = Predicate(field="seller", op="=", value=seller)
    return found(search(retriever(index), SearchQuery(("between",), filters=where)))


def test_extracted_fields_filter_and_are_asked_once(tmp_path: Path) -> None:
    folder, index = write(tmp_path / "docs", FILES), tmp_path / "index"
    report, asked = run(folder, index, schema(), *[answer(SAID)] * 2)
    assert (outcomes(report), asked) == ({"a.md": "ingested", "b.md": "ingested"}, 2)
    assert [row.reason for row in report.rows] == ["", ""]
    assert (by_seller(index, "Acme"), by_seller(index, "Zeta")) == (["a.md"], ["b.md"])
    later = SearchQuery(("between",), filters=Predicate(field="signed", op=">=", value="2000-01-01"))
    assert found(search(retriever(index), later)) == ["b.md"]

    report, asked = run(folder, index, schema())
    assert (outcomes(report), asked) == ({"a.md": "unchanged", "b.md": "unchanged"}, 0)
    assert by_seller(index, "Acme") == ["a.md"]

    write(folder, {"a.md": FILES["a.md"].replace("Acme", "Omega")})
    report, asked = run(folder, index, schema(), answer({"Supply": {"seller": "Omega"}}))
    assert (outcomes(report), asked) == ({"a.md": "replaced", "b.md": "unchanged"}, 1)
    assert (by_seller(index, "Acme"), by_seller(index, "Omega")) == ([], ["a.md"])


def test_what_another_source_gives_is_not_asked_and_counts(tmp_path: Path) -> None:
    folder, index = write(tmp_path / "docs", FILES), tmp_path / "index"
    table = tmp_path / "t.csv"
    table.write_text("path,seller\na.md,Given\n")
    seen: list[str] = []

    def script(request: CompletionRequest) -> str:
        assert request.json_schema is not None
        seen.append(",".join(json.loads(request.json_schema)["required"]))
        return str(answer(SAID)(request))

    run(folder, index, schema(), script, script, table=table)
    assert sorted(seen) == ["seller,signed", "signed"]
    assert by_seller(index, "Given") == ["a.md"]
    _, asked = run(folder, index, schema(), answer(SAID))  # no table any more: now it is asked for
    assert (asked, by_seller(index, "Acme"), by_seller(index, "Given")) == (1, ["a.md"], [])


def test_a_changed_field_is_asked_anew_from_the_store_and_only_it(tmp_path: Path) -> None:
    folder, index = write(tmp_path / "docs", FILES), tmp_path / "index"
    run(folder, index, schema(), *[answer(SAID)] * 2)
    other = schema(units={"type": "number", "extract": True})
    prompts: list[CompletionRequest] = []

    def script(request: CompletionRequest) -> str:
        prompts.append(request)
        return '{"units": 30}'

    report, asked = run(folder, index, other, script, script)
    assert (asked, set(outcomes(report).values())) == (2, {"described", "unchanged"} - {"unchanged"})
    assert "Between Acme and Bolt" in prompts[0].messages[1].content
    assert "Supply" in prompts[0].messages[1].content
    row = next(row for row in report.rows if row.uri == "b.md")
    assert (row.reason, "30.0" in row.message or "'30'" in row.message) == ("metadata", True)
    assert by_seller(index, "Acme") == ["a.md"]
    assert run(folder, index, other)[1] == 0, "what was dropped is not asked again either"


def test_a_fault_is_in_the_report_and_tried_again_by_the_next_run(tmp_path: Path) -> None:
    folder, index = write(tmp_path / "docs", FILES), tmp_path / "index"
    report, _ = run(folder, index, schema(), StageUnavailable("nobody there"), StageUnavailable("nobody there"))
    assert set(outcomes(report).values()) == {"ingested"}
    assert {(row.reason, "nobody there" in row.message) for row in report.rows} == {("metadata", True)}
    assert by_seller(index, "Acme") == []
    report, asked = run(folder, index, schema(), *[answer(SAID)] * 2)
    assert (asked, set(outcomes(report).values())) == (2, {"described"})
    assert by_seller(index, "Acme") == ["a.md"]


def test_a_required_field_may_be_extracted_and_fails_where_it_is_not(tmp_path: Path) -> None:
    folder, index = write(tmp_path / "docs", FILES), tmp_path / "index"
    required = schema(seller={"type": "text", "extract": True, "required": True})
    said = {**SAID, "Lease": {"seller": "Nobody"}}
    report, _ = run(folder, index, required, *[answer(said)] * 2)
    assert outcomes(report) == {"a.md": "ingested", "b.md": "failed"}
    message = next(row.message for row in report.rows if row.uri == "b.md")
    assert "required, and not there: seller; seller: the extracted 'Nobody'" in message


def test_without_a_model_the_report_says_what_was_not_asked(tmp_path: Path) -> None:
    folder, encoder = write(tmp_path / "docs", FILES), WordEncoder()
    sources = find_sources([folder], folder)
    report = Ingestion(
        Layout(str(tmp_path / "i")), "docs", sources, encoder, encoder.embed_now, DirectParser(), schema=schema()
    ).run()
    assert report.not_asked == ["seller", "signed"]
    assert report.summary()["not_asked"] == ["seller", "signed"]


# ---- the command, with an endpoint ----------------------------------------------------------------------------------


APP = typer.Typer()
APP.command("ingest")(ingest)
APP.command("buckets")(buckets)


@contextmanager
def serving(llm: ScriptedLLM) -> Iterator[str]:
    started, loops, stop = threading.Event(), list[asyncio.AbstractEventLoop](), asyncio.Event()
    server = OpenAIServer(llm)

    async def main() -> None:
        async with server:
            loops.append(asyncio.get_running_loop())
            started.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    assert started.wait(10)
    yield server.url
    loops[0].call_soon_threadsafe(stop.set)
    thread.join(10)


def test_the_command_extracts_by_an_endpoint_and_shows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "docs", FILES)
    Path("schema.yaml").write_text(yaml.safe_dump({"fields": SCHEMA}))
    words = ["ingest", "docs", "--index", "i", "--bucket", "docs", "--schema", "schema.yaml", "--report", "r.json"]
    with serving(ScriptedLLM(*[answer(SAID)] * 2)) as url:
        done = CliRunner().invoke(APP, [*words, "--extract-url", url, "--extract-model", "scripted"])
    assert done.exit_code == 0, done.output
    assert "model should extract" not in done.stdout
    shown = CliRunner().invoke(APP, ["buckets", "show", "docs", "--index", "i"])
    assert "in 2 of 2 documents, extracted in 2: Acme (1), Zeta (1)" in shown.stdout, shown.output
    again = CliRunner().invoke(APP, words)
    assert "model should extract, and none is named" in again.stdout
    assert json.loads(Path("r.json").read_text())["outcomes"] == {"unchanged": 2}
    refused = CliRunner().invoke(APP, [*words, "--extract-url", url])
    assert (refused.exit_code, "--extract-model" in refused.output) == (2, True)
    refused = CliRunner().invoke(APP, [*words, "--extract-url", "nowhere", "--extract-model", "x"])
    assert (refused.exit_code, "--extract-url is wrong" in refused.output) == (2, True)
