"""The shared sets as collections, and the rows that say whether a goal holds."""

from pathlib import Path

import pytest

from assay.eval.collection import Collection
from assay.eval.compare import compared
from assay.eval.ranking import Bench
from assay.eval.setups import setups
from assay.index.embed import SentenceEmbedder
from assay.models import embedder_path
from bench.judged import SETS
from bench.ranking import markdown, of_set

DATA = (Path(__file__).parents[3] / "shared" / "data").resolve()

# Documents, queries with a relevant document, and the best gain there is, as data/INDEX.md of the shared sets tells them.
SIZES = {
    "dbpedia_entity_5k": (5000, 40, 3),
    "cranfield": (1400, 225, 4),
    "xquad en": (240, 1190, 1),
    "xquad ar": (240, 1190, 1),
    "xquad zh": (240, 1190, 1),
    "hotpotqa_100": (994, 100, 1),
    "musique_50": (1890, 50, 1),
}


needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"the shared data sets are not at {DATA}: nothing to read")


@needs_data
@pytest.mark.parametrize("name", SETS)
def test_a_set_is_read_whole(name: str) -> None:
    found = SETS[name].read(DATA)
    best = max(grade for grades in found.judged.values() for grade in grades.values())
    assert (len(found.documents), len(found.queries), best) == SIZES[name]


@needs_data
def test_a_leg_that_cannot_read_the_question_is_not_listened_to(tmp_path: Path) -> None:
    """A part of XQuAD's Arabic, of which the embedder reads nothing, through the real index and embedder. The default was
    measured at .944, one share for all queries at .900, and legs that weigh the same at .633."""
    whole = SETS["xquad ar"].read(DATA)
    documents = whole.documents[:40]
    held = {document.id for document in documents}
    judged = dict([(name, grades) for name, grades in whole.judged.items() if grades.keys() <= held][::4])
    part = Collection(documents, {name: whole.queries[name] for name in judged}, judged)
    bench = Bench(part, tmp_path, SentenceEmbedder(str(embedder_path())))
    bench.index()
    found = bench.compare(setups(["default", "rrf"]), ("nDCG@10",)).estimates
    assert found["default"]["nDCG@10"].mean > 0.92
    assert found["rrf"]["nDCG@10"].mean < 0.7


def values(**means: float) -> dict[str, dict[str, dict[str, float]]]:
    return {config: {m: {"q": mean, "r": mean} for m in ("nDCG@10", "R@5")} for config, mean in means.items()}


@pytest.mark.parametrize(
    ("default", "reached", "kept"), [(0.6, True, True), (0.574, False, True), (0.55, False, False)]
)
def test_a_goal_that_is_missed_is_a_row_that_says_so(default: float, reached: bool, kept: bool) -> None:
    ranking = compared(values(default=default, dense=0.5, sparse=0.58), "default")
    rows = {row.name: row for row in of_set("cranfield", SETS["cranfield"], ranking)}
    assert rows["cranfield | default | nDCG@10"].holds is reached
    assert rows["cranfield | default | behind its better leg"].holds is kept
    assert rows["cranfield | dense | nDCG@10"].goal is None


def test_the_table_marks_what_is_certain() -> None:
    def config(mean: float, certain: bool | None) -> dict[str, object]:
        against = {} if certain is None else {"nDCG@10": {"certain": certain}}
        return {"means": {"nDCG@10": {"mean": mean}}, "against": against}

    configs = {"default": config(0.58, None), "dense": config(0.5, True), "rrf": config(0.57, False)}
    line = markdown({"cranfield": {"queries": 225, "configurations": configs}}).splitlines()[2]
    assert line == "| cranfield (225) | nDCG@10 | 0.5800 | 0.5000* | 0.5700 | 0.575 by default |"
