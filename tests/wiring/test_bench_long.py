"""The right passages of what long documents are asked: by their places, whatever the passages are."""

from dataclasses import replace
from pathlib import Path

import pytest

from assay.types import Chunk
from bench.contracts import questions, spans_of
from bench.long_collections import Held, collections
from tests.fakes import chunk

DATA = (Path(__file__).parents[3] / "shared" / "data").resolve()
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"the shared data sets are not at {DATA}: nothing to read")


def cut(text: str, first: int) -> list[Chunk]:
    """Passages of 600 characters."""
    return [
        replace(chunk(first + n, text[at : at + 600]), start=at, end=at + 600)
        for n, at in enumerate(range(0, len(text), 600))
    ]


def held(folder: Path) -> Held:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    texts = {path.relative_to(folder).as_posix(): path.read_bytes().decode() for path in files}
    return {name: (text, cut(text, 10_000 * number)) for number, (name, text) in enumerate(texts.items())}


@needs_data
@pytest.mark.parametrize("name", ["volumes", "volumes with a contents page"])
def test_a_clause_in_a_volume_is_right_in_its_own_contract_alone(tmp_path: Path, name: str) -> None:
    made = collections(DATA, tmp_path)[name]()
    found = held(made.folder)
    passages = {c.id: c for _, chunks in found.values() for c in chunks}
    asked = made.ask(found)
    assert {a.kind for a in asked} == {"clauses in volumes", "clauses of the others"}
    of = {question.text: question for question in questions(DATA / "contracts" / "cuad")}
    for one in asked:
        whole = (DATA / "contracts" / "cuad" / "txt" / of[one.text].contract).read_text("utf-8")
        spans = spans_of(of[one.text], whole)
        assert len(one.ids) >= bool(spans)
        assert len(one.ids) <= sum((end - start) // 600 + 2 for start, end in spans), "no other contract's like it"
        for id in one.ids:
            assert any(piece in whole for piece in (passages[id].text[:200], passages[id].text[-200:]))


@needs_data
def test_fields_of_the_reference_and_descriptions_of_the_other_pages(tmp_path: Path) -> None:
    made = collections(DATA, tmp_path)["pages"]()
    found = held(made.folder)
    passages = {c.id: c.text for _, chunks in found.values() for c in chunks}
    asked = made.ask(found)
    fields = [one for one in asked if not one.whole]
    assert len(fields) == 400
    assert all(f'name="{one.text.split()[4]}"' in "".join(passages[id] for id in one.ids) for one in fields)
    pages = [one for one in asked if one.whole]
    assert len(pages) > 100 and all(one.text in "".join(passages[id] for id in one.ids) for one in pages)
