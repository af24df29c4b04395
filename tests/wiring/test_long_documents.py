"""Documents of hundreds of passages among short ones: the level of leads over a real index."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from assay.config import LoopConfig, RetrieverConfig
from assay.evidence import EvidenceSet, in_order
from assay.retrieve import LocalRetriever
from assay.schemas import Predicate
from assay.types import DocumentQuery, Hit, SearchQuery
from tests.wiring.index.builders import found, ingest, retriever, search, write

SECTIONS = 300
PARTS = ("valve", "pump", "filter", "gauge", "boiler", "fan", "relay", "motor")
ADVICE = (
    "Before any work the line is shut, drained and marked at both ends.",
    "What was taken apart is cleaned with warm water, and laid out in the order in which it came.",
    "A seal is used once, and a new one has to be of the same make.",
    "Whoever has done the work signs the log, with the hour and the reading.",
    "If it runs hot, it is stopped at once, and the shift leader is told.",
    "Nuts are drawn crosswise, in three rounds, by hand at first.",
    "A reading that differs from the last one by a tenth is taken again.",
    "Spare parts lie in the store by the gate, sorted by their numbers.",
    "After the work it runs for a quarter of an hour without a load.",
)
PLANTS = ("Aldan", "Vitim", "Lena")  # the last one's is seen by its own people alone
BOUND = ("Kolyma", "Onega", "Pechora")  # three shorter manuals in one file


def part(section: int) -> str:
    return f"{PARTS[section % len(PARTS)]} {section}"


def days(plant: str, section: int) -> int:
    return 20 + 3 * section + (*PLANTS, *BOUND).index(plant) % 3


def manual(plant: str, count: int = SECTIONS) -> str:
    """Which plant it is of is said at its beginning alone: from section to section manuals differ by one number."""
    sections = []
    for n in range(1, count + 1):
        advice = " ".join(ADVICE[(n * k + k) % len(ADVICE)] for k in (1, 2, 4, 5, 7))
        sections.append(
            f"## The {part(n)}\n\nThe {part(n)} is checked every {days(plant, n)} days. {advice} No other part stands near it."
        )
    return f"# Manual\n\nThis manual is for those who keep the plant by the river {plant}.\n\n" + "\n\n".join(sections)


FILES = {
    **{f"{plant.lower()}.md": manual(plant) for plant in PLANTS[:2]},
    "lena.md": f"---\nallowed_groups: [lena]\n---\n{manual('Lena')}",
    "olekma.md": f"# Note\n\nIn the mill at Olekma the {part(16)} is checked every 5 days.\n",
    "letter.md": f"# Letter\n\nWhy is the {part(40)} checked so seldom, asks the insurer of the works.\n",
    "menu.md": "# Menu\n\nOn Monday there is soup, on Friday fish.\n",
    "visit.md": "# Visit\n\nThe minister comes to see the bridge in June.\n",
}
LED = RetrieverConfig(lead_weight=0.8)  # as docs/search.md has it


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("long")
    ingest(write(folder / "a", FILES), folder / "index", "docs")
    ingest(write(folder / "b", {"vitim-old.md": manual("Vitim")}), folder / "index", "archive")
    return folder / "index"


@pytest.fixture(scope="module")
def led(index: Path) -> LocalRetriever:
    return retriever(index, config=LED)


@pytest.fixture(scope="module")
def plain(index: Path) -> LocalRetriever:
    return retriever(index)


def asked(plant: str, section: int) -> str:
    return f"How often is the {part(section)} checked at the plant by the river {plant}?"


def hits(over: LocalRetriever, question: str, **rest: Any) -> tuple[Hit, ...]:
    return search(over, SearchQuery((question,), **{"buckets": ("docs",), "top_k": 10, **rest})).hits


def saying(over: LocalRetriever, plant: str, section: int, **rest: Any) -> list[str]:
    """The documents of the passages that say how often, best first."""
    return [
        hit.chunk.uri
        for hit in hits(over, asked(plant, section), **rest)
        if f"The {part(section)} is" in hit.chunk.text
    ]


def test_they_are_long(led: LocalRetriever) -> None:
    ids = {hit.chunk.uri: hit.chunk.doc_id for hit in hits(led, "manual", top_k=100, groups=None)}
    for plant in PLANTS:
        query = DocumentQuery(ids[f"{plant.lower()}.md"], groups=None)
        assert asyncio.run(led.get_document_metadata(query)).chunks >= SECTIONS


@pytest.mark.parametrize("plant", PLANTS[:2])
@pytest.mark.parametrize("section", [2, 97, 160, 299])
def test_a_section_is_found_in_the_document_that_is_meant(led: LocalRetriever, plant: str, section: int) -> None:
    result = search(led, SearchQuery((asked(plant, section),), buckets=("docs",), top_k=2))
    told = [hit.chunk for hit in result.hits if f"every {days(plant, section)} days" in hit.chunk.text]
    assert [chunk.uri for chunk in told] == [f"{plant.lower()}.md"], "beside it there is its manual's first passage"
    assert result.explain.methods["lead"] == "exact"


def test_without_the_level_manuals_are_told_apart_by_chance(plain: LocalRetriever) -> None:
    """Or the test above shows nothing."""
    best = [saying(plain, plant, 97)[0] for plant in PLANTS[:2]]
    assert best in (["aldan.md"] * 2, ["vitim.md"] * 2)


def test_a_section_is_found_that_no_leg_had_among_its_candidates(index: Path) -> None:
    narrow = RetrieverConfig(fetch=1)
    led = LED.model_copy(update={"fetch": 1})
    for plant in PLANTS[:2]:
        assert saying(retriever(index, config=narrow), plant, 299) == []
        assert saying(retriever(index, config=led), plant, 299)[0] == f"{plant.lower()}.md"


@pytest.mark.parametrize(
    ("rest", "never"),
    [
        ({}, {"lena.md", "vitim-old.md"}),
        ({"groups": ("lena",)}, {"vitim-old.md"}),
        ({"buckets": ("archive",)}, {*FILES}),
        ({"buckets": ("archive", "docs"), "groups": None}, set()),
        ({"filters": Predicate(field="uri", op="!=", value="vitim.md")}, {"lena.md", "vitim.md", "vitim-old.md"}),
        ({"filters": Predicate(field="title", op="=", value="Note")}, {*FILES} - {"olekma.md"}),
    ],
)
@pytest.mark.parametrize("plant", PLANTS)
def test_what_may_not_be_seen_leads_nowhere(led: LocalRetriever, plant: str, rest: Any, never: set[str]) -> None:
    result = search(led, SearchQuery((asked(plant, 97),), **{"buckets": ("docs",), "top_k": 5000, **rest}))
    told = set(found(result))
    assert told and not told & never
    assert len(result.hits) <= result.explain.allowed_rows
    meant = {f"{plant.lower()}.md", f"{plant.lower()}-old.md"} & told
    assert not meant or saying(led, plant, 97, **rest)[0] in meant


def test_a_document_that_may_not_be_seen_takes_no_place(index: Path, tmp_path: Path) -> None:
    """Of the one place for a document; the order of what is seen is as if the other was not there."""
    ingest(write(tmp_path / "a", {k: v for k, v in FILES.items() if k != "lena.md"}), tmp_path / "index", "docs")
    one = LED.model_copy(update={"lead_documents": 1})
    alone, beside = [hits(retriever(at, config=one), asked("Lena", 97)) for at in (tmp_path / "index", index)]
    assert [(h.chunk.uri, h.chunk.start) for h in alone] == [(h.chunk.uri, h.chunk.start) for h in beside]


@pytest.mark.parametrize(
    ("question", "short"),
    [
        ("How often is the valve 16 checked in the mill?", "olekma.md"),
        ("What does the insurer of the works ask?", "letter.md"),
        ("When comes the minister to see the bridge?", "visit.md"),
        ("What is there on Friday?", "menu.md"),
    ],
)
def test_a_short_document_comes_first_where_it_is_meant(led: LocalRetriever, question: str, short: str) -> None:
    assert hits(led, question)[0].chunk.uri == short


def test_a_long_document_does_not_crowd_out_the_others(led: LocalRetriever) -> None:
    """What is asked stands in two long documents and in a short one, and no document is meant."""
    best = hits(led, f"How often is the {part(16)} checked?", top_k=30)
    assert {"aldan.md", "vitim.md", "olekma.md"} == {h.chunk.uri for h in best[:5] if part(16) in h.chunk.text}
    evidence = EvidenceSet(LoopConfig().per_document)
    evidence.add(in_order(best), 10, 1)
    assert {"aldan.md", "vitim.md", "olekma.md"} <= {e.hit.chunk.uri for e in evidence.all}


@pytest.fixture(scope="module")
def volume(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("volume")
    bound = "\n\n".join(manual(plant, 45) for plant in BOUND)
    ingest(write(folder / "a", {"volume.md": bound, "menu.md": FILES["menu.md"]}), folder / "index", "docs")
    return folder / "index"


def told(index: Path, weight: float, plant: str, section: int) -> int:
    """The days that the best passage about the part says."""
    over = retriever(index, config=RetrieverConfig(lead_weight=weight))
    texts = [hit.chunk.text for hit in hits(over, asked(plant, section), top_k=20)]
    return next(
        int(days.group(1)) for text in texts if (days := re.search(rf"{part(section)} is checked every (\d+)", text))
    )


@pytest.mark.parametrize("section", [2, 20, 44])
def test_what_is_bound_with_others_is_found_in_its_own_part(volume: Path, section: int) -> None:
    """The volume's beginning names the first of them alone: the others begin within it. What leads to the first leads to the
    whole volume, so that there the order stays: between passages that differ by one number it is nobody's."""
    first, *others = BOUND
    right = [days(plant, section) for plant in others]
    assert [told(volume, 0.0, plant, section) for plant in others] != right, "or this shows nothing"
    assert [told(volume, 0.8, plant, section) for plant in others] == right
    assert told(volume, 0.8, first, section) == told(volume, 0.0, first, section)
