"""``assay eval ranking`` over real indexes: what it measures, what it keeps, what it refuses."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from assay.config import Legs
from assay.errors import SetupError
from assay.eval.collection import Collection, read_collection
from assay.eval.metrics import Values
from assay.eval.ranking import Bench
from assay.eval.setups import setups
from assay.index.files import Layout
from assay.index.snapshot import read_current
from tests.unit.index.fakes import WordEncoder

ROOT = Path(__file__).parents[2]
METRICS = ("nDCG@10", "R@2")

DOCUMENTS = {
    "heat": ("Heat", "How heat flows through a slab of metal. " * 40 + "Ablation carries heat away."),
    "wing": ("Wing", "A wing that is swept back flutters at high speed."),
    "nose": ("Nose", "Ablation of a blunt nose. The wing is elsewhere."),
    "title only": ("Ablation", ""),
    "empty": ("", ""),
}
QUERIES = {"1": "flutter of a swept wing", "2": "ablation", "3": "unjudged", "4": "zeppelin"}
QRELS = "query-id\tcorpus-id\tscore\n1\twing\t2\n1\tnose\t1\n2\tnose\t1\n2\theat\t1\n4\theat\t1\n"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    corpus = [json.dumps({"_id": i, "title": t, "text": x}) for i, (t, x) in DOCUMENTS.items()]
    (tmp_path / "corpus.jsonl").write_text("\n".join(corpus))
    (tmp_path / "queries.jsonl").write_text("\n".join(json.dumps({"_id": i, "text": q}) for i, q in QUERIES.items()))
    (tmp_path / "qrels.tsv").write_text(QRELS)
    return tmp_path


@pytest.fixture
def collection(files: Path) -> Collection:
    return read_collection(files / "corpus.jsonl", files / "queries.jsonl", files / "qrels.tsv")


def test_a_collection_through_the_real_index(tmp_path: Path, collection: Collection) -> None:
    bench = Bench(collection, tmp_path / "cache", WordEncoder())
    report = bench.index()
    assert {row.uri: row.outcome for row in report.rows if row.outcome != "ingested"} == {"empty": "skipped"}
    assert sum(row.chunks for row in report.rows) > len(DOCUMENTS), "one of them has several passages"
    ranking = bench.compare(setups(["default", "sparse", "link"]), METRICS)
    assert set(ranking.values["sparse"]["R@2"]) == {"1", "2", "4"}
    assert ranking.values["sparse"]["nDCG@10"]["1"] == pytest.approx(1.0)
    assert ranking.values["sparse"]["nDCG@10"]["4"] == 0.0, "no term of it is known, so that nothing is found"
    assert ranking.values["default"]["R@2"]["1"] == 1.0
    assert set(ranking.against) == {"sparse", "link"}


def test_a_second_run_embeds_nothing(tmp_path: Path, collection: Collection) -> None:
    first, again = WordEncoder(), WordEncoder()
    for encoder in (first, again):
        bench = Bench(collection, tmp_path, encoder)
        bench.index()
        bench.compare(setups(["default"]), METRICS)
    assert sum(first.calls) > 0
    assert again.calls == []
    other = Bench(collection, tmp_path, WordEncoder("other"))
    assert other.folder != bench.folder, "vectors of another encoder are not these"


def test_what_was_done_before_an_interrupt_is_kept(tmp_path: Path, collection: Collection) -> None:
    encoder = WordEncoder()
    bench = Bench(collection, tmp_path, encoder)
    bench.index()
    encoder.fault = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        bench.compare(setups(["default"]), METRICS)
    encoder.fault = None
    finished: dict[str, Values] = {}

    def stop(what: str, done: int, total: int) -> None:
        if "rrf" in what:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bench.compare(setups(["default", "rrf"]), METRICS, stop, finished.__setitem__)
    assert list(finished) == ["default"]
    calls = len(encoder.calls)
    ranking = bench.compare(setups(["default", "rrf"]), METRICS)
    assert len(encoder.calls) == calls
    assert ranking.values["default"] == finished["default"]


def test_other_legs_are_built_without_embedding(tmp_path: Path, collection: Collection) -> None:
    encoder = WordEncoder()
    bench = Bench(collection, tmp_path, encoder)
    bench.index()
    bench.compare(setups(["default"]), METRICS)
    calls = len(encoder.calls)
    layout = Layout(str(bench.folder))
    bench.compare(setups(["default", 'other={"k1": 3.0, "b": 0.1, "dense": "flat"}']), METRICS)
    assert read_current(layout).legs == Legs(k1=3.0, b=0.1, dense="flat")
    bench.compare(setups(["sparse"]), METRICS)
    assert read_current(layout).legs == Legs(), "a configuration has the legs that it names, whatever ran before"
    assert len(encoder.calls) == calls


class Faulty(WordEncoder):
    """Has no vector for zeppelins."""

    def embed_now(self, texts: Sequence[str]) -> NDArray[np.float32]:
        out = super().embed_now(texts)
        out[["zeppelin" in text for text in texts]] = np.nan
        return out


def test_a_degraded_search_is_no_figure(tmp_path: Path, collection: Collection) -> None:
    bench = Bench(collection, tmp_path, Faulty())
    bench.index()
    with pytest.raises(SetupError, match="default: the query '4' was degraded: the embedder returned no finite vector"):
        bench.compare(setups(["default"]), METRICS)


def run(*words: str | Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "assay", "eval", "ranking", *map(str, words)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)


def test_the_command(files: Path) -> None:
    done = run(
        *("--corpus", files / "corpus.jsonl", "--queries", files / "queries.jsonl", "--qrels", files / "qrels.tsv"),
        *("--cache", files / "cache", "--json", files / "out.json", "--plot", files / "out.svg"),
        *("--config", "default", "--config", 'heavy={"dense_weight": 1.0}', "--config", "sparse"),
        *("--gains", "exponential", "--metric", "nDCG@10", "--metric", "RR"),
    )
    assert done.returncode == 0, done.stderr
    assert "5 documents, 3 queries" in done.stdout
    assert "nDCG@10 minus default" in done.stdout
    found = json.loads((files / "out.json").read_text())
    assert list(found["configurations"]) == ["default", "heavy", "sparse"]
    heavy = found["configurations"]["heavy"]
    assert heavy["config"]["dense_weight"] == 1.0
    assert set(heavy["queries"]) == {"1", "2", "4"}
    means, against = heavy["means"]["nDCG@10"], heavy["against"]["nDCG@10"]
    assert means["low"] <= means["mean"] <= means["high"]
    assert against["wins"] + against["ties"] + against["losses"] == 3
    values = [of["nDCG@10"] for of in heavy["queries"].values()]
    assert means["mean"] == pytest.approx(sum(values) / 3, abs=1e-6)
    picture = (files / "out.svg").read_text()
    assert picture.startswith("<?xml") and "heavy" in picture


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--qrels", "nowhere"], "nowhere: cannot be read"),
        (["--metric", "precision"], "'precision' is no metric"),
        (["--config", 'a={"fusoin": 1}'], "fetch, fusion, dense_weight"),
        (["--gains", "square"], "the gains 'square' are none of"),
        (["--plot", "x.gif"], "(there are: .svg, .png, .pdf)"),
        (["--json", "nowhere/x.json"], "cannot be written: its folder is missing"),
    ],
)
def test_faults_are_told_before_any_work(files: Path, words: list[str], said: str) -> None:
    given: list[str | Path] = [
        "--corpus",
        files / "corpus.jsonl",
        "--queries",
        files / "queries.jsonl",
        "--qrels",
        files / "qrels.tsv",
    ]
    done = run(*given, *words, "--cache", files / "cache")
    assert (done.returncode, done.stdout) == (2, "")
    assert said in " ".join(done.stderr.split())
    assert not (files / "cache").exists()
