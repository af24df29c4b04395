"""The parsing child's limits of time and memory: each has a file that it alone refuses, and that is ingested without it."""

import json
from pathlib import Path

import pytest

from assay.errors import ParseFault
from assay.index.files import Layout
from assay.index.ingest import Ingestion, find_sources
from assay.index.parse.parser import Limits, Parser
from tests.unit.index.fakes import WordEncoder
from tests.wiring.index.builders import found, retriever, search

# Seconds and hundreds of megabytes of structure around a few words, so that nothing after the parsing is slow.
SLOW = "slow.html", b"<p>A zebra sleeps.</p>" + b"<p></p>" * 800_000
LARGE = "large.json", b'{"said": "A zebra sleeps.", "more": [' + b",".join([b"[]"] * 1_000_000) + b"]}"


def outcomes(folder: Path, index: Path, limits: Limits) -> dict[str, tuple[str, str]]:
    encoder = WordEncoder()
    with Parser(limits) as parser:
        run = Ingestion(Layout(str(index)), "docs", find_sources([folder], folder), encoder, encoder.embed_now, parser)
        return {row.uri: (row.outcome, row.reason) for row in run.run().rows}


@pytest.mark.parametrize(
    ("file", "limits", "reason"),
    [(SLOW, Limits(seconds=0.5), "timeout"), (LARGE, Limits(memory_bytes=200_000_000), "memory")],
)
def test_one_limit_refuses_a_file_and_without_it_the_file_is_ingested(
    tmp_path: Path, file: tuple[str, bytes], limits: Limits, reason: str
) -> None:
    name, data = file
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / name).write_bytes(data)
    index = tmp_path / "index"
    assert outcomes(tmp_path / "files", index, limits) == {name: ("failed", reason)}
    assert outcomes(tmp_path / "files", index, Limits()) == {name: ("ingested", "")}
    assert found(search(retriever(index), "zebra")) == [name]


@pytest.mark.parametrize("megabytes", [80, 90, 100, 110])
def test_memory_that_ends_while_the_refusal_is_written_is_memory_all_the_same(megabytes: int) -> None:
    """When the parser is out of memory, what it holds is not free yet: nothing that is said then may need any."""
    data = "".join(f"# Part {i}\n\nText [a](b) *c* {i}.\n\n- x\n- y\n\n" for i in range(15_000)).encode()
    with Parser(Limits(memory_bytes=megabytes * 1_000_000)) as parser:
        with pytest.raises(ParseFault) as fault:
            parser.parse(data, "parts.md")
        assert fault.value.reason == "memory"
        assert parser.parse(json.dumps({"said": "zebra"}).encode(), "next.json").text == "said: zebra"
