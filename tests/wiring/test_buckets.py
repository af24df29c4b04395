"""Schemas and metadata, from files to what a search is bound by: real indexes, no engine."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter
from typer.testing import CliRunner

from assay.bound import BoundRetriever
from assay.cli import buckets as cli
from assay.config import ToolsConfig
from assay.errors import InvalidFilter, NotFound, SetupError, UnknownBucket, UnknownField
from assay.hits import Search
from assay.index.buckets import BucketSchema, dump_schema
from assay.index.files import Layout
from assay.index.ingest import Ingestion, Report, find_sources
from assay.index.metadata import Given, MetadataTable, Pattern
from assay.schemas import Filter, SearchRequest
from assay.tools import Registry, ToolContext
from assay.types import BucketInfo, DocumentQuery, Scope, SearchQuery
from tests.unit.index.fakes import WordEncoder
from tests.wiring.index.builders import DirectParser, found, retriever, search, write
from tests.wiring.index.pdf import pdf

CONTRACTS = BucketSchema.model_validate(
    {
        "description": "Signed contracts",
        "fields": {
            "type": {"type": "text", "required": True, "description": "Its kind"},
            "amount": {"type": "number"},
            "signed": {"type": "date"},
            "active": {"type": "boolean"},
            "parties": {"type": "list"},
        },
    }
)
FILES = {
    "a.md": "---\ntype: Supply\namount: 1,200\nsigned: 2024-01-05\nactive: yes\nparties: [Acme, Bolt]\n---\nThe pump is sold.",
    "b.md": "---\ntype: Lease\namount: 80\nsigned: 2024-06-30T23:30:00-02:00\nparties: [Acme]\n---\nThe pump is rented.",
    "c.md": "---\ntype: Supply\nsigned: soon\ncolour: red\n---\nThe pump is lost.",
}


def ingest(
    folder: Path, index: Path, bucket: str = "contracts", schema: BucketSchema | None = CONTRACTS, **given: Any
) -> tuple[Report, WordEncoder]:
    encoder = WordEncoder()
    sources = find_sources([folder], folder)
    told = Given([s.path for s in sources], **given)
    run = Ingestion(
        Layout(str(index)), bucket, sources, encoder, encoder.embed_now, DirectParser(), schema=schema, given=told
    )
    return run.run(), encoder


def where(field: str, op: str, value: object) -> dict[str, Any]:
    return {"field": field, "op": op, "value": value}


def asked(filters: dict[str, Any] | None, **rest: Any) -> SearchQuery:
    parsed = TypeAdapter[Filter](Filter).validate_python(filters) if filters else None
    return SearchQuery(("pump",), filters=parsed, **rest)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("buckets")
    ingest(write(folder / "a", FILES), folder / "index")
    mail = BucketSchema.model_validate({"fields": {"amount": {"type": "text"}, "sender": {"type": "text"}}})
    ingest(
        write(folder / "b", {"m.md": "---\namount: much\nsender: Ada\n---\nA pump by mail."}),
        folder / "index",
        "mail",
        mail,
    )
    return folder / "index"


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (where("type", "=", "Supply"), ["a.md", "c.md"]),
        (where("amount", ">", 100), ["a.md"]),
        (where("signed", "<=", "2024-07-01T01:30:00Z"), ["a.md", "b.md"]),
        (where("signed", ">=", "2024-07-01"), ["b.md"]),
        (where("signed", "=", "2024-01-05T00:00:00Z"), ["a.md"]),
        (where("signed", "is_null", True), ["c.md"]),
        (where("active", "=", True), ["a.md"]),
        (where("parties", "=", "Acme"), ["a.md", "b.md"]),
        (where("parties", "!=", "Bolt"), ["b.md"]),
        (where("parties", "in", ["Bolt", "Cog"]), ["a.md"]),
        (where("parties", "like", "Bo%"), ["a.md"]),
        (where("parties", "is_null", True), ["c.md"]),
        ({"not": where("parties", "=", "Bolt")}, ["b.md", "c.md"]),
    ],
)
def test_filters_by_metadata(index: Path, filters: dict[str, Any], expected: list[str]) -> None:
    result = search(retriever(index), asked(filters, buckets=("contracts",), top_k=50))
    assert sorted(found(result)) == expected


def test_a_field_that_some_buckets_have_is_missing_in_the_others(index: Path) -> None:
    r = retriever(index)
    assert found(search(r, asked(where("sender", "=", "Ada")))) == ["m.md"]
    assert sorted(found(search(r, asked(where("type", "is_null", False))))) == ["a.md", "b.md", "c.md"]
    with pytest.raises(UnknownField) as unknown:
        search(r, asked(where("sender", "=", "Ada"), buckets=("contracts",)))
    assert "type" in unknown.value.allowed
    assert "sender" not in unknown.value.allowed


def test_a_field_of_two_types_wants_one_bucket(index: Path) -> None:
    r = retriever(index)
    with pytest.raises(InvalidFilter, match="'amount' is a number in 'contracts', a text in 'mail'; select one bucket"):
        search(r, asked(where("amount", "=", 80)))
    assert found(search(r, asked(where("amount", "=", "much"), buckets=("mail",)))) == ["m.md"]


def test_facets_count_documents(index: Path) -> None:
    names = ("type", "signed", "parties", "amount", "active", "format", "page")
    facets = search(retriever(index), asked(None, buckets=("contracts",), facets=names, top_k=1)).facets
    plain = {name: ([(v.value, v.count) for v in facet.values], facet.missing) for name, facet in facets.items()}
    assert plain == {
        "type": ([("Supply", 2), ("Lease", 1)], 0),
        "signed": ([("2024", 2)], 1),
        "parties": ([("Acme", 2), ("Bolt", 1)], 1),
        "amount": ([(80.0, 1), (1200.0, 1)], 1),
        "active": ([(True, 1)], 2),
        "format": ([("md", 3)], 0),
        "page": ([], 3),
    }
    nothing = search(retriever(index), asked(where("type", "=", "None"), buckets=("contracts",), facets=("type",)))
    assert nothing.facets["type"].values == []
    with pytest.raises(UnknownField) as fault:
        search(retriever(index), asked(None, facets=("type", "colour")))
    assert fault.value.field == "facets[1]"


def test_what_does_not_fit_is_told_and_what_lacks_the_required_fails(tmp_path: Path) -> None:
    files = {**FILES, "d.md": "---\namount: 5\n---\nNo type.", "e.md": "---\ntype: [1\n---\nBroken."}
    report, _ = ingest(write(tmp_path / "a", files), tmp_path / "index")
    rows = {row.uri: (row.outcome, row.reason, row.message) for row in report.rows}
    assert rows["c.md"] == ("ingested", "metadata", "signed: 'soon' is not an ISO 8601 date")
    assert rows["d.md"] == ("failed", "metadata", "required, and not there: type")
    assert rows["e.md"] == ("failed", "metadata", "required, and not there: type")
    assert rows["a.md"] == ("ingested", "", "")
    assert report.undeclared == {"colour": 1}


def test_new_metadata_needs_no_new_vectors(tmp_path: Path) -> None:
    folder, index = write(tmp_path / "a", FILES), tmp_path / "index"
    ingest(folder, index)
    before = search(retriever(index), asked(where("type", "=", "Supply")))
    (tmp_path / "t.csv").write_text("path,amount,type\nb.md,99,Supply\nzz.md,1,Lease\n")
    (folder / "a.md.json").write_text('{"parties": ["Cog"]}')
    report, encoder = ingest(folder, index, table=MetadataTable(tmp_path / "t.csv"))
    assert sum(encoder.calls) == 0
    assert {row.uri: row.outcome for row in report.rows} == {
        "a.md": "described",
        "a.md.json": "skipped",
        "b.md": "described",
        "c.md": "unchanged",
    }
    assert report.unused_rows == ["zz.md"]
    r = retriever(index)
    assert sorted(found(search(r, asked(where("type", "=", "Supply"))))) == ["a.md", "b.md", "c.md"]
    assert found(search(r, asked(where("parties", "=", "Cog")))) == ["a.md"]
    assert {hit.chunk.id for hit in before.hits} < {hit.chunk.id for hit in search(r, "pump").hits}
    again, _ = ingest(folder, index, table=MetadataTable(tmp_path / "t.csv"))
    assert {row.outcome for row in again.rows} == {"unchanged", "skipped"}
    assert again.index_version == report.index_version
    gone, _ = ingest(folder, index)
    assert {row.uri: row.outcome for row in gone.rows}["b.md"] == "described"
    assert sorted(found(search(retriever(index), asked(where("type", "=", "Supply"))))) == ["a.md", "c.md"]


def test_a_new_schema_reads_what_is_stored(tmp_path: Path) -> None:
    folder, index = write(tmp_path / "a", FILES), tmp_path / "index"
    ingest(folder, index, schema=None)
    with pytest.raises(UnknownField):
        search(retriever(index), asked(where("type", "=", "Supply")))
    report, encoder = ingest(folder, index)
    assert encoder.calls == []
    assert {row.outcome for row in report.rows} == {"unchanged"}
    old = retriever(index)
    assert sorted(found(search(old, asked(where("type", "=", "Supply"))))) == ["a.md", "c.md"]
    other = BucketSchema.model_validate({"fields": {"type": {"type": "list"}, "colour": {"type": "text"}}})
    ingest(folder, index, schema=other)
    new = retriever(index)
    assert found(search(new, asked(where("colour", "=", "red")))) == ["c.md"]
    with pytest.raises(UnknownField):
        search(new, asked(where("amount", "=", 80)))
    # A snapshot's filters are compiled against its own schema.
    assert found(search(old, asked(where("amount", "=", 80)))) == ["b.md"]


def test_paths_say_what_a_document_is(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", {"Supply/x.md": "A pump.", "Lease/y.md": "A pump."})
    ingest(folder, tmp_path / "index", patterns=[Pattern("{type}/{name}.md")])
    assert found(search(retriever(tmp_path / "index"), asked(where("type", "=", "Lease")))) == ["Lease/y.md"]


def test_lookups_are_bound_like_searches(index: Path) -> None:
    r = retriever(index)
    hit = search(r, asked(where("type", "=", "Lease"))).hits[0]
    doc = hit.chunk.doc_id
    lease = TypeAdapter[Filter](Filter).validate_python(where("type", "=", "Lease"))
    supply = TypeAdapter[Filter](Filter).validate_python(where("type", "=", "Supply"))
    info = asyncio.run(r.get_document_metadata(DocumentQuery(doc, ("contracts",), lease)))
    assert (info.uri, info.bucket) == ("b.md", "contracts")
    assert info.metadata == {"type": "Lease", "amount": 80.0, "signed": "2024-07-01T01:30:00Z", "parties": ["Acme"]}
    for outside in (DocumentQuery(doc, ("mail",)), DocumentQuery(doc, (), supply), DocumentQuery("doc_nowhere")):
        for look in (r.document_lookup, r.get_document_metadata):
            with pytest.raises(NotFound, match="there is no such document"):
                asyncio.run(look(outside))


def test_lookups_have_windows(tmp_path: Path) -> None:
    deep = "The pump here is deep. " * 20
    text = f"# One\n\n{'Alpha beta. ' * 30}\n\n# Two\n\n## Deep\n\n{deep}\n\n# Three\n\n{'The end. ' * 40}\n\n# Short\n\nDone."
    ingest(write(tmp_path / "a", {"x.md": text}), tmp_path / "index", schema=None)
    r = retriever(tmp_path / "index")
    doc = search(r, "pump").hits[0].chunk.doc_id

    def look(**window: Any) -> Any:
        return asyncio.run(r.document_lookup(DocumentQuery(doc, **window)))

    for part in (
        look(),
        look(span=(5, 9)),
        look(heading="Two"),
        look(heading="Deep"),
        look(max_chars=10),
        look(span=(0, 10**9)),
    ):
        assert text[part.span[0] : part.span[1]] == part.text
        assert part.chars == len(text)
        assert len(part.text) <= 4000
    assert look(heading="Deep").text == look(heading="Two").text == deep.strip()
    assert look(heading="Short").text == "# Short\n\nDone."
    assert look(max_chars=10).text == text[:10]
    assert look(span=(10**6, 10**7)).text == ""
    with pytest.raises(NotFound) as fault:
        look(heading="Four")
    assert {"One", "Two", "Deep"} <= set(fault.value.allowed)
    with pytest.raises(NotFound, match="no page '3'"):
        look(page=3)


def test_a_filter_on_pages_binds_what_is_read_of_a_document(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / "x.pdf").write_bytes(pdf("(The pump moves water.) Tj", pages=4))
    ingest(folder, tmp_path / "index", schema=None)
    r = retriever(tmp_path / "index")
    spans = {hit.chunk.page: (hit.chunk.start, hit.chunk.end) for hit in search(r, "pump").hits}
    doc = search(r, "pump").hits[0].chunk.doc_id
    only = TypeAdapter[Filter](Filter).validate_python(where("page", "=", 2))
    apart = TypeAdapter[Filter](Filter).validate_python(where("page", "in", [1, 2, 4]))

    def look(filters: Filter, **window: Any) -> Any:
        return asyncio.run(r.document_lookup(DocumentQuery(doc, (), filters, **window)))

    for part in (look(only), look(only, page=2), look(only, span=(0, 10**6)), look(apart, page=2)):
        assert part.span == spans[2]
    assert look(apart).span == (spans[1][0], spans[2][1]), "neighbours as one, up to the first gap"
    for window in ({"page": 3}, {"span": spans[3]}, {"span": (10**6, 10**7)}):
        with pytest.raises(NotFound):
            look(only, **window)
    with pytest.raises(NotFound) as fault:
        look(only, page=3)
    assert fault.value.allowed == ("2",)
    for hit in search(r, SearchQuery(("pump",), filters=only, context_chars=4000)).hits:
        assert hit.context is not None
        assert hit.context.span == spans[2]


def test_text_around_a_match(index: Path, tmp_path: Path) -> None:
    text = "Zero. " * 200 + "\n\nThe pump B-120 moves water.\n\n" + "One. " * 200
    ingest(write(tmp_path / "a", {"x.txt": text}), tmp_path / "index", schema=None)
    r = retriever(tmp_path / "index")
    for chars in (0, 10, 60, 400, 4000):
        for hit in search(r, SearchQuery(("pump B-120",), context_chars=chars)).hits:
            assert hit.context is not None
            start, end = hit.context.span
            assert hit.context.text == text[start:end]
            assert len(hit.context.text) <= chars
    best = search(r, SearchQuery(("pump B-120",), context_chars=60)).hits[0]
    assert best.context is not None
    assert "pump B-120" in best.context.text


PREAMBLES = {
    "front.md": "---\ntitle: Pumps\n# a comment\nowner: of the pump\n---\n\n",
    "windows.md": "---\r\ntitle: Pumps\r\n---\r\n",
    "comment.md": "<!-- Copyright\n# of somebody\n-->\n\n",
    "imports.mdx": "---\ntitle: Pumps\n---\nimport A from './a'\n\nexport const x = () => {\n  y\n}\n\n",
}


@pytest.mark.parametrize("name", PREAMBLES)
@pytest.mark.parametrize("filters", [None, {"field": "format", "op": "=", "value": "md"}])
def test_what_a_file_says_before_its_text_is_no_context(tmp_path: Path, name: str, filters: Any) -> None:
    text = PREAMBLES[name] + "# Pumps\n\n## B-120\n\nThe pump B-120 moves water.\n\n# Valves\n\nThe valve is shut.\n"
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / name).write_bytes(text.encode())  # as it is, with its ends of lines
    ingest(tmp_path / "a", tmp_path / "index", schema=None)
    r, start = retriever(tmp_path / "index"), text.index("# Pumps")
    asked = {"question": "pump valve", "filters": filters, "context_chars": 4000}
    shown = asyncio.run(Search(r, r._config)(SearchRequest.model_validate(asked), "req_1")).hits
    assert shown and all(hit.text_span[0] == start and hit.text == text[start:].strip() for hit in shown)
    context = ToolContext(BoundRetriever(r, Scope()))
    registry = Registry.of(ToolsConfig())
    around = asyncio.run(registry.call("search_text", {"query": "pump", "context_chars": 2000}, context)).note
    assert around.partition(": ")[2] == text[start:].strip()
    doc = shown[0].doc_id
    assert asyncio.run(registry.call("document_lookup", {"doc_id": doc}, context)).hits[0].chunk.text == text[start:]
    whole = asyncio.run(r.document_lookup(DocumentQuery(doc, span=(0, 10**6))))
    assert (whole.text, whole.chars) == (text, len(text)), "who names characters has what stands there"


NOTED = "The pump B-120 moves water.\n\n<!-- a secret note -->\n\nThe valve is shut.\n"


def test_comments_between_the_blocks_of_markdown_are_no_context(tmp_path: Path) -> None:
    long = "".join(
        f"# Part {n}\n\n{'The pump B-120 moves water. ' * 20}\n\n<!-- a secret note -->\n\n" for n in range(4)
    )
    files = {"short.md": NOTED, "long.md": long, "said.txt": NOTED, "code.md": f"# X\n\n```\n{NOTED}```\n"}
    ingest(write(tmp_path / "a", files), tmp_path / "index", schema=None)
    r = retriever(tmp_path / "index")
    for chars in (40, 400, 4000):
        for asked in ("pump moves", "valve shut"):
            hits = search(r, SearchQuery((asked,), context_chars=chars)).hits
            assert {hit.chunk.uri for hit in hits} == set(files)
            for hit in hits:
                assert hit.context is not None and hit.context.text.strip()
                text, (start, end) = files[hit.chunk.uri], hit.context.span
                assert hit.context.text == text[start:end]
                if hit.chunk.uri in ("short.md", "long.md"):
                    assert "secret" not in hit.context.text
                elif chars == 4000:
                    assert "secret" in hit.context.text, "what somebody reads"
                if hit.chunk.uri == "short.md":
                    assert asked.split()[0] in hit.context.text, (
                        "of a passage with a comment the part that was asked for"
                    )


def test_a_crash_in_the_middle_of_a_schema_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, index = write(tmp_path / "a", FILES), tmp_path / "index"
    ingest(folder, index)
    other = BucketSchema.model_validate({"fields": {"type": {"type": "text"}, "colour": {"type": "text"}}})
    with monkeypatch.context() as patch:
        patch.setattr("assay.index.store.Store._commit", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            ingest(folder, index, schema=other)
    r = retriever(index)
    assert found(search(r, asked(where("amount", "=", 80)))) == ["b.md"]
    report, _ = ingest(folder, index, schema=None)
    assert {row.outcome for row in report.rows} == {"unchanged"}
    assert found(search(retriever(index), asked(where("amount", "=", 80)))) == ["b.md"]


def test_the_command(tmp_path: Path) -> None:
    import typer

    app = typer.Typer()
    app.command("buckets")(cli.buckets)
    run = CliRunner()
    folder, index = write(tmp_path / "a", FILES), tmp_path / "index"
    nothing = run.invoke(app, ["set", "contracts", "--index", str(index), "--schema", str(tmp_path / "none.yaml")])
    assert nothing.exit_code == 2
    ingest(folder, index, schema=None)
    inferred = run.invoke(app, ["infer", str(folder), "--write", str(tmp_path / "s.yaml")])
    assert inferred.exit_code == 0, inferred.output
    assert "# in 2 of 3 files: 1,200, 80" in inferred.stdout
    assert (
        run.invoke(app, ["set", "contracts", "--index", str(index), "--schema", str(tmp_path / "s.yaml")]).exit_code
        == 0
    )
    assert found(search(retriever(index), asked(where("colour", "=", "red")))) == ["c.md"]
    (tmp_path / "strict.yaml").write_text("fields: {amount: {type: number, required: true}}")
    strict = run.invoke(app, ["set", "contracts", "--index", str(index), "--schema", str(tmp_path / "strict.yaml")])
    assert strict.exit_code == 2
    assert "c.md: amount" in strict.stderr
    (tmp_path / "c.yaml").write_text(dump_schema(CONTRACTS))
    assert (
        run.invoke(app, ["set", "contracts", "--index", str(index), "--schema", str(tmp_path / "c.yaml")]).exit_code
        == 0
    )
    shown = run.invoke(app, ["show", "contracts", "--index", str(index)])
    assert "# in 3 of 3 documents: Supply (2), Lease (1)" in shown.stdout
    listed = run.invoke(app, ["list", "--index", str(index)])
    assert "Signed contracts" in listed.stdout
    unknown = run.invoke(app, ["show", "contrcats", "--index", str(index)])
    assert unknown.exit_code == 2
    assert "contracts" in unknown.stderr


def test_a_bucket_of_another_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="a bucket's name"):
        ingest(write(tmp_path / "a", FILES), tmp_path / "index", bucket="a/b")


def test_state_is_json_with_the_schema(index: Path) -> None:
    state = json.loads((index / "state.json").read_text())
    assert state["buckets"]["contracts"]["description"] == "Signed contracts"


def described(index: Path, scope: Scope) -> dict[str, BucketInfo]:
    return {bucket.name: bucket for bucket in asyncio.run(retriever(index).describe(scope))}


def test_a_scope_is_described_by_what_is_in_it_alone(index: Path) -> None:
    """What a planner may choose among: nothing of a bucket, a document or a value that the request may not see."""
    everything = described(index, Scope())
    assert set(everything) == {"contracts", "mail"} and everything["contracts"].description == "Signed contracts"
    fields = {field.name: field for field in everything["contracts"].fields}
    assert fields["type"].values == ("Lease", "Supply") and fields["parties"].values == ("Acme", "Bolt")
    assert fields["amount"].values == () and (fields["type"].documents, fields["amount"].documents) == (3, 2)
    lease = TypeAdapter[Filter](Filter).validate_python(where("type", "=", "Lease"))
    within = described(index, Scope(("contracts",), lease))
    assert set(within) == {"contracts"} and within["contracts"].documents == 1
    assert [field.values for field in within["contracts"].fields if field.values] == [("Lease",), ("Acme",)]
    with pytest.raises(UnknownBucket):
        described(index, Scope(("contrcats",)))


def test_a_field_with_many_values_is_described_without_them(tmp_path: Path) -> None:
    schema = BucketSchema.model_validate({"fields": {"name": {"type": "text"}, "note": {"type": "text"}}})
    files = {f"{n}.md": f"---\nname: n{n}\nnote: {'x' * 61}\n---\nText {n}." for n in range(41)}
    ingest(write(tmp_path / "docs", files), tmp_path / "index", "many", schema)
    assert [field.values for field in described(tmp_path / "index", Scope())["many"].fields] == [(), ()]
