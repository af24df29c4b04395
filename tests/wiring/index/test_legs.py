"""The legs against brute force: what is found, under any filter, in one segment or in several."""

import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import bm25s
import numpy as np
import pytest
from numba import njit
from numpy.typing import NDArray

from assay.config import Legs
from assay.errors import IndexFault
from assay.index import analyser, dense, files, halves, kernels, lists, quantised, sparse
from assay.index.dense import Dense
from assay.index.files import Buffer, Layout, describe, read_checked
from assay.index.mirror import compact
from assay.index.reader import Reader
from assay.index.snapshot import read_current
from assay.index.sparse import Sparse
from assay.text import index_terms
from tests.unit.index.fakes import WordEncoder
from tests.wiring.index.builders import WORDS, ingest, some_texts, write

ROWS, DIM = 6_000, 32


def read(folder: Path) -> dict[str, Buffer]:
    return {name: read_checked(folder / name, e) for name, e in describe(folder).items()}


def unit(vectors: NDArray[np.float64]) -> NDArray[np.float32]:
    return (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def vectors() -> NDArray[np.float16]:
    """In clumps, as texts are; row i is of clump i % 60."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(60, DIM))
    return unit(centres[np.arange(ROWS) % 60] + 0.4 * rng.normal(size=(ROWS, DIM))).astype(np.float16)


@pytest.fixture(scope="module", params=dense.KINDS)
def leg(
    request: pytest.FixtureRequest, vectors: NDArray[np.float16], tmp_path_factory: pytest.TempPathFactory
) -> Dense:
    folder = tmp_path_factory.mktemp(request.param)
    dense.build(vectors, folder, request.param)
    assert sorted(read(folder)) == sorted(dense.files_of(request.param))
    return dense.load(request.param, read(folder), ROWS)


def best(scores: NDArray[np.float32], k: int, allowed: NDArray[np.bool_]) -> list[int]:
    rows = np.flatnonzero(allowed)
    return rows[np.lexsort((rows, -scores[rows]))][:k].tolist()


@pytest.mark.parametrize("share", [1, 0.5, 0.3, 0.1, 0.01, 0.001])
@pytest.mark.parametrize("spread", ["evenly", "by subject"])
def test_a_filter_binds_and_recall_holds(leg: Dense, vectors: NDArray[np.float16], share: float, spread: str) -> None:
    """With the thresholds as they are: from .3 down all allowed rows are compared one by one."""
    rng = np.random.default_rng(1)
    found = wanted = 0
    for query in vectors[rng.integers(ROWS, size=30)].astype(np.float32):
        scores = vectors.astype(np.float32) @ query
        # By subject: what is allowed are the clumps that the query is farthest from.
        far = np.array([scores[clump::60].mean() for clump in range(60)])[np.arange(ROWS) % 60]
        by = rng.random(ROWS) if spread == "evenly" else far + 1e-6 * rng.random(ROWS)
        allowed = by <= np.quantile(by, share)
        positions, cosines = leg.search(query, 100, allowed, int(allowed.sum()))
        exact = best(scores, 100, allowed)
        assert len(positions) == len(set(positions.tolist())) == len(exact), (
            "a narrow filter is no reason to find fewer"
        )
        assert allowed[positions].all()
        assert np.allclose(cosines, scores[positions], atol=1e-5)
        assert (np.diff(cosines) <= 0).all()
        found += len(set(positions[:10].tolist()) & set(exact[:10]))
        wanted += min(10, len(exact))
    assert found >= 0.95 * wanted


PASSAGES = 20_000


@pytest.fixture(scope="module")
def passages() -> NDArray[np.float16]:
    """In clumps within clumps, as passages are of documents, and these of subjects that lie near some others."""
    rng = np.random.default_rng(0)
    subjects = rng.normal(size=(8, DIM))[np.arange(60) % 8] + 0.7 * rng.normal(size=(60, DIM))
    documents = subjects[np.arange(1_200) % 60] + 0.6 * rng.normal(size=(1_200, DIM))
    return unit(documents[np.arange(PASSAGES) % 1_200] + 0.3 * rng.normal(size=(PASSAGES, DIM))).astype(np.float16)


@pytest.fixture(scope="module", params=dense.KINDS)
def indexed(
    request: pytest.FixtureRequest, passages: NDArray[np.float16], tmp_path_factory: pytest.TempPathFactory
) -> tuple[dense.Kind, Dense]:
    folder = tmp_path_factory.mktemp(request.param)
    dense.build(passages, folder, request.param)
    return request.param, dense.load(request.param, read(folder), PASSAGES)


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each search compares, where no set of rows is too small for lists, codes and graph. Of ``ivf`` as many as
    it is told to see."""
    counts: list[int] = []

    def counting(name: str, count: Callable[..., int]) -> Callable[..., Any]:
        def counted(*given: Any) -> Any:
            counts.append(count(*given))
            return getattr(kernels, name)(*given)

        return counted

    seen = {
        "scan": counting("scan", lambda *given: int(given[-1])),
        "scan_all": counting("scan_all", lambda vectors, *_: len(vectors)),
        "best_of": counting("best_of", lambda positions, *_: len(positions)),
    }
    for module in (lists, quantised):
        monkeypatch.setattr(module, "FEW", 0)
        # Not in the kernels themselves, which are compiled with what they call.
        monkeypatch.setattr(module, "kernels", SimpleNamespace(**{**vars(kernels), **seen}))
    monkeypatch.setattr(quantised, "_SHARE", 0)
    return counts


@pytest.mark.parametrize("share", [0.5, 0.3, 0.15])
@pytest.mark.parametrize("spread", ["evenly", "far subjects", "near subjects"])
def test_recall_holds_where_not_all_allowed_rows_are_compared(
    indexed: tuple[dense.Kind, Dense], passages: NDArray[np.float16], compared: list[int], spread: str, share: float
) -> None:
    kind, leg = indexed
    rng = np.random.default_rng(1)
    queries, found = passages[rng.integers(PASSAGES, size=20)].astype(np.float32), 0
    for query, scores in zip(queries, queries @ passages.astype(np.float32).T, strict=True):
        near = np.array([scores[of::60].mean() for of in range(60)])[np.arange(PASSAGES) % 60]
        by = rng.random(PASSAGES) if spread == "evenly" else near if spread == "far subjects" else -near
        allowed = by <= np.quantile(by, share)
        count = int(allowed.sum())
        compared.clear()
        positions, cosines = leg.search(query, 100, allowed, count)
        # Where the graph comes by too few allowed rows, since all near ones are left out, all of them are compared.
        everything = kind == "flat" or (kind == "hnsw" and spread == "far subjects")
        assert len(compared) == 1
        assert (compared[0] >= count) == everything
        assert allowed[positions].all()
        assert len(positions) == len(set(positions.tolist())) == 100
        assert np.allclose(cosines, scores[positions], atol=1e-5)
        found += len(set(positions[:10].tolist()) & set(best(scores, 10, allowed)))
    assert found == 200 if everything else found >= 0.95 * 200


@pytest.mark.parametrize("dim", [32, 64])
@pytest.mark.parametrize("kind", ["ivf", "sq8"])
def test_lists_are_read_on_where_only_subjects_far_from_the_query_are_allowed(
    kind: dense.Kind, dim: int, tmp_path: Path
) -> None:
    """Subjects that have nothing in common, so that no list is nearer than others to what is allowed: the rows that are
    compared at the least hold .6 to .8 of the best ten."""
    rng, rows = np.random.default_rng(0), 3 * PASSAGES
    subject = np.arange(rows) % 60
    many = unit(rng.normal(size=(60, dim))[subject] + 0.4 * rng.normal(size=(rows, dim))).astype(np.float16)
    dense.build(many, tmp_path, kind)
    leg, found = dense.load(kind, read(tmp_path), rows), 0
    for query in many[rng.integers(rows, size=30)].astype(np.float32):
        scores = many.astype(np.float32) @ query
        near = np.bincount(subject, scores)
        allowed = (near <= np.median(near))[subject]
        positions, _ = leg.search(query, 100, allowed, int(allowed.sum()))
        found += len(set(positions[:10].tolist()) & set(best(scores, 10, allowed)))
    assert found >= 0.95 * 300


@pytest.mark.parametrize("kind", dense.KINDS)
def test_two_rows_of_twenty_thousand(kind: dense.Kind, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """A filter so narrow that a walk or a probe from the query's neighbourhood would never meet what it allows: as it is, where
    so few rows are compared one by one, and by the index alone."""
    rng = np.random.default_rng(2)
    many = unit(rng.normal(size=(20_000, 16))).astype(np.float16)
    dense.build(many, tmp_path, kind)
    leg = dense.load(kind, read(tmp_path), len(many))
    for by_index in (False, True):
        if by_index:
            request.getfixturevalue("compared")
            assert leg.is_exact(2) == (kind == "flat")
        for query in many[:5].astype(np.float32):
            two = np.argsort(many.astype(np.float32) @ query)[[0, 9_999]]  # the farthest of all, and one halfway
            allowed = np.isin(np.arange(len(many)), two)
            assert sorted(leg.search(query, 2, allowed, 2)[0].tolist()) == sorted(two.tolist())


def test_without_a_filter(leg: Dense, vectors: NDArray[np.float16]) -> None:
    query = vectors[7].astype(np.float32)
    positions, cosines = leg.search(query, ROWS + 50, None, ROWS)
    assert positions[0] == 7
    assert cosines[0] == pytest.approx(1, abs=1e-3)
    assert len(set(positions.tolist())) == ROWS
    assert np.allclose(leg.cosines(query, positions), cosines, atol=1e-6)


@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, -1.0, 6e-8, -5e-6, 0.333, 60000.0])
def test_halves_are_read_as_numpy_reads_them(value: float, tmp_path: Path) -> None:
    vectors = np.full((3, 1), value, np.float16)
    dense.build(vectors, tmp_path, "flat")
    built = dense.load("flat", read(tmp_path), 3)
    assert built.cosines(np.ones(1, np.float32), np.arange(3)).tolist() == [float(np.float16(value))] * 3


@pytest.mark.parametrize("wide", [halves.wide, halves._by_shifts])
def test_all_finite_halves_are_read_as_numpy_reads_them(wide: Any) -> None:
    """By what this machine does, and by what one without the instruction would do."""

    @njit
    def read_all(bits, out):  # type: ignore[no-untyped-def]
        for i in range(len(bits)):
            out[i] = wide(bits[i])

    bits = np.arange(1 << 16, dtype=np.uint16)
    bits = bits[np.isfinite(bits.view(np.float16))]
    out = np.empty(len(bits), np.float32)
    read_all(bits, out)
    assert (out == bits.view(np.float16).astype(np.float32)).all()


# ---- sparse ---------------------------------------------------------------------------------------------------------


def test_scores_are_those_of_bm25s(tmp_path: Path) -> None:
    texts = some_texts(2_000)
    terms = sparse.analyse([texts[:700], texts[700:]])
    sparse.build(terms, tmp_path, 1.5, 0.75, terms.mean)
    leg = Sparse(read(tmp_path), len(texts))
    theirs = bm25s.BM25()
    theirs.index([index_terms(text) for text in texts], show_progress=False)
    counts = leg.counts(None)
    for query in (["w0"], ["w1", "w250"], ["w3", "w3", "w40", "w90", "w7"], WORDS[:30]):
        rarity = {t: np.log(1 + (2_000 - counts[leg.place(t)] + 0.5) / (counts[leg.place(t)] + 0.5)) for t in query}
        asked = leg.weighted([(t, query.count(t) * rarity[t]) for t in rarity])
        expected = theirs.get_scores(query)
        assert np.allclose(leg.scores(asked, np.arange(2_000)), expected, rtol=1e-5, atol=1e-6)
        own = leg.scores(asked, np.arange(2_000))
        for share in (1, 0.9, 0.3, 0.01, 0):
            allowed = np.random.default_rng(2).random(2_000) < share
            for k in (1, 10, 3_000):
                positions, scores = leg.search(asked, k, allowed, int(allowed.sum()))
                assert positions.tolist() == [p for p in best(own, k, allowed) if own[p] > 0]
                assert scores.tolist() == own[positions].tolist()


def test_many_rows_are_pruned_and_still_right(tmp_path: Path) -> None:
    """More than one block of rows, so that the common terms become ones that are only asked about."""
    texts = some_texts(40_000, 3)
    terms = sparse.analyse([texts], processes=1)
    sparse.build(terms, tmp_path, 1.2, 0.5, terms.mean)
    leg = Sparse(read(tmp_path), len(texts))
    counts = leg.counts(None)
    rng = np.random.default_rng(4)
    for _ in range(20):
        query = rng.choice(WORDS, size=6, replace=False)
        asked = leg.weighted([(t, float(np.log(40_000 / counts[leg.place(t)]))) for t in query])
        own = leg.scores(asked, np.arange(40_000))
        for allowed in (None, rng.random(40_000) < 0.2, rng.random(40_000) < 0.8):
            mask = np.ones(40_000, bool) if allowed is None else allowed
            assert leg.search(asked, 10, allowed, int(mask.sum()))[0].tolist() == best(own, 10, mask)


def test_processes_analyse_as_one_does() -> None:
    texts = [*some_texts(20_500), "東京は日本の首都です", "Der Mieter zahlt die Miete und der Vermieter nicht"]
    many, one = (sparse.analyse([texts[:9_000], texts[9_000:]], processes=n) for n in (2, 1))
    for terms in (many, one):
        rows = np.split(terms.ids, np.cumsum(terms.lengths)[:-1])
        for text, row in list(zip(texts, rows, strict=True))[::1000] + list(zip(texts, rows, strict=True))[-2:]:
            assert [terms.names[i] for i in row] == index_terms(text)


def test_a_child_that_dies_costs_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    texts = some_texts(30)
    found = list(analyser.in_processes([texts[:10], texts[10:20], texts[20:]], 2))
    assert [t.names for t in found] == [
        analyser.terms_of(part).names for part in (texts[:10], texts[10:20], texts[20:])
    ]


# ---- segments -------------------------------------------------------------------------------------------------------


def scores_of(index: Path) -> dict[str, dict[str, float]]:
    """Of some queries, for every document that they match."""
    reader = Reader(Layout(str(index)), read_current(Layout(str(index))))
    names = [chunk.uri for chunk in reader.chunks(np.arange(len(reader.ids)))]
    found = {}
    for query in ("w0", "w5 w17 w200", "w1 w1 w299 w4"):
        asked = reader.sparse_query(query)
        rows, scores = reader.search_sparse(asked, 1_000, None)
        assert scores.tolist() == reader.bm25(asked, rows).tolist()
        found[query] = {names[row]: score for row, score in zip(rows, scores.tolist(), strict=True)}
    return found


def test_a_score_does_not_hang_on_the_segment(tmp_path: Path) -> None:
    """Rarity is counted over all segments, deleted rows apart, and one mean length serves all, until texts have changed."""
    texts = {f"{i:03}.txt": text for i, text in enumerate(some_texts(200))}
    one, many = tmp_path / "one", tmp_path / "many"
    ingest(write(tmp_path / "a", texts), one)
    folder = tmp_path / "b"
    ingest(write(folder, {name: f"{texts[name]} zebra" for name in list(texts)[:20]}), many)
    for start in range(0, 200, 50):
        ingest(
            write(folder, {n: t for n, t in texts.items() if start <= int(n[:3]) < start + 50}), many, rebuild_rows=0
        )
    reader = Reader(Layout(str(many)), read_current(Layout(str(many))))
    used = {s.segment.entry.bm25.mean for s in reader.segments}
    assert len(reader.segments) >= 4
    assert len(used) == 1
    mean = read_current(Layout(str(one))).segments[0].bm25.mean
    assert abs(used.pop() - mean) < 0.2 * mean
    exact, apart = scores_of(one), scores_of(many)
    for query, scores in exact.items():
        assert apart[query].keys() == scores.keys()
        assert all(apart[query][uri] == pytest.approx(score, rel=0.2) for uri, score in scores.items())
    ingest(folder, many, rebuild=True)
    assert scores_of(many) == exact


def test_a_drifted_mean_is_corrected(tmp_path: Path) -> None:
    folder, index = tmp_path / "a", tmp_path / "index"
    ingest(write(folder, {f"{i}.txt": f"w{i} w1" for i in range(30)}), index, rebuild_rows=0)
    ingest(write(folder, {f"long{i}.txt": "w1 w2 " * 20 for i in range(30)}), index, rebuild_rows=0)
    layout = Layout(str(index))
    assert [s.bm25.mean for s in read_current(layout).segments] == [3, 3]
    compact(layout)
    assert [s.bm25.mean for s in read_current(layout).segments] == [22]
    before = read_current(layout)
    assert compact(layout) == before, "nothing is left to do"


def test_what_was_loaded_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, index = tmp_path / "a", tmp_path / "index"
    ingest(write(folder, {f"{i}.txt": t for i, t in enumerate(some_texts(50))}), index, rebuild_rows=0)
    before = Reader(Layout(str(index)), read_current(Layout(str(index))))
    ingest(write(folder, {"new.txt": "w1 zebra"}), index, rebuild_rows=0)
    seen: list[str] = []

    def fault_of(path: Path, expected: dict[str, Any]) -> str | None:
        seen.append(path.name)
        return files.fault_of(path, expected)

    monkeypatch.setattr("assay.index.reader.fault_of", fault_of)
    after = Reader(Layout(str(index)), read_current(Layout(str(index))), before)
    assert after.segments[0].segment is before.segments[0].segment
    old = {Path(name).name for name in before.manifest.files} & {Path(name).name for name in after.manifest.files}
    assert old
    assert seen
    assert not old & set(seen)


def test_a_torn_store_is_told_before_what_came_of_reading_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is compared while the rest is made ready: nothing of that counts before, and no fault of that hides it."""
    folder, index = tmp_path / "a", tmp_path / "index"
    ingest(write(folder, {f"{i}.txt": t for i, t in enumerate(some_texts(20))}), index)
    layout = Layout(str(index))
    manifest = read_current(layout)
    data = next((index / "chunks.lance" / "data").glob("*.lance"))

    def failing(*_: Any) -> None:
        raise IndexFault("what came of it")

    def stopped(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Reader, "_open", failing)
        with pytest.raises(IndexFault, match="what came of it"):
            Reader(layout, manifest)
    whole = data.read_bytes()
    data.write_bytes(whole[:-40] + bytes([whole[-40] ^ 1]) + whole[-39:])
    for opening in (Reader._open, failing):
        with monkeypatch.context() as patched:
            patched.setattr(Reader, "_open", opening)
            with pytest.raises(IndexFault, match=data.name):
                Reader(layout, manifest)
    monkeypatch.setattr(Reader, "_open", stopped)
    with pytest.raises(KeyboardInterrupt):
        Reader(layout, manifest)


@pytest.mark.parametrize("kind", dense.KINDS)
def test_a_file_of_a_leg_that_is_whole_but_of_another_leg_is_refused(kind: dense.Kind, tmp_path: Path) -> None:
    vectors = unit(np.random.default_rng(0).normal(size=(301, 4))).astype(np.float16)
    for name, rows in (("a", 300), ("b", 301)):
        (tmp_path / name).mkdir()
        dense.build(vectors[:rows], tmp_path / name, kind)
    whole, other = read(tmp_path / "a"), read(tmp_path / "b")
    dense.load(kind, whole, 300)
    for name in dense.files_of(kind):
        if name != lists.CENTRES:
            with pytest.raises(IndexFault):
                dense.load(kind, {**whole, name: other[name]}, 300)
    with pytest.raises(IndexFault):
        dense.load(kind, whole, 301)


def test_codes_of_another_kind_are_refused(tmp_path: Path) -> None:
    vectors = unit(np.random.default_rng(0).normal(size=(300, 4))).astype(np.float16)
    kinds: tuple[dense.Kind, ...] = ("sq8", "hnsw")
    for kind in kinds:
        (tmp_path / kind).mkdir()
        dense.build(vectors, tmp_path / kind, kind)
    for kind, other, why in zip(kinds, reversed(kinds), ("has no lists", "is no graph"), strict=True):
        with pytest.raises(IndexFault, match=why):
            dense.load(kind, read(tmp_path / other), 300)


def test_the_ladder() -> None:
    assert [dense.kind_for(rows, "auto") for rows in (0, 20_000, 20_001, 1_000_000)] == ["flat", "flat", "ivf", "ivf"]
    for kind in dense.KINDS:
        assert [dense.kind_for(rows, kind) for rows in (1_000, 1_001)] == ["flat", kind]


@pytest.mark.parametrize("segments", [1, 2])
@pytest.mark.parametrize("queries", [1, 3])
def test_what_is_searched_beside_is_what_is_found_at_once(
    segments: int, queries: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one segment, whose loop runs alone, as in two; with a filter and without; by a thread that is busy at first."""
    monkeypatch.setattr("assay.index.lists.FEW", 10)
    monkeypatch.setattr(dense, "_INDEXED", 50)
    index = tmp_path / "index"
    for part in range(segments):
        texts = {f"{part}-{i}.txt": text for i, text in enumerate(some_texts(400)) if i % segments == part}
        ingest(write(tmp_path / "a", texts), index, rebuild_rows=0, legs=Legs(dense="ivf"))
    layout = Layout(str(index))
    reader = Reader(layout, read_current(layout))
    assert len(reader.segments) == segments
    vectors = WordEncoder().embed_now(["w1 w5 w17", "w2 w100", "w7"][:queries])
    some = np.arange(len(reader.ids)) % 3 > 0
    loop = Mock(wraps=kernels.scan_into)
    monkeypatch.setattr(kernels, "scan_into", loop)
    with ThreadPoolExecutor(1) as pool:
        for mask in (None, some, np.zeros(len(reader.ids), np.bool_)):
            expected = [reader.search_dense(vector, 20, mask) for vector in vectors]
            for _ in range(3):
                pool.submit(time.sleep, 0.01)
                found = reader.dense_beside(vectors, 20, mask, pool)()
                for (rows, cosines), (of_rows, of_cosines) in zip(found, expected, strict=True):
                    assert rows.tolist() == of_rows.tolist()
                    assert cosines.tolist() == of_cosines.tolist()
    assert loop.call_count == (6 if segments == queries == 1 else 0), "of no row there is nothing to compare"


def test_a_fault_beside_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise MemoryError("no more")

    monkeypatch.setattr(dense, "_INDEXED", 50)
    index = tmp_path / "index"
    texts = {f"{i}.txt": text for i, text in enumerate(some_texts(400))}
    ingest(write(tmp_path / "a", texts), index, legs=Legs(dense="ivf"))
    layout = Layout(str(index))
    reader = Reader(layout, read_current(layout))
    monkeypatch.setattr(kernels, "scan_into", failing)
    with ThreadPoolExecutor(1) as pool, pytest.raises(MemoryError, match="no more"):
        reader.dense_beside(WordEncoder().embed_now(["w1"]), 20, None, pool)()


def test_the_background_is_that_of_all_rows(tmp_path: Path) -> None:
    """From the vectors' moments, over several segments; unknown where one of them lacks its vectors."""
    folder, index = tmp_path / "a", tmp_path / "index"
    for half in (0, 1):
        texts = {f"{half}-{i}.txt": text for i, text in enumerate(some_texts(60)) if i % 2 == half}
        ingest(write(folder, texts), index, rebuild_rows=0)
    layout = Layout(str(index))
    reader = Reader(layout, read_current(layout))
    assert len(reader.segments) == 2
    query = WordEncoder().embed_now(["w1 w5 w17"])[0]
    cosines = reader.cosines(query, np.arange(len(reader.ids)))
    assert reader.background(query) == pytest.approx((cosines.mean(), cosines.std()), abs=1e-5)
    torn = next(index.rglob("dense.vectors.npy"))
    torn.write_bytes(b"torn" + torn.read_bytes()[4:])
    assert np.isnan(Reader(layout, read_current(layout)).background(query)).all()


@pytest.mark.parametrize(("share", "few"), [(None, False), (0.9, False), (0.3, True), (0.3, False), (0.001, True)])
def test_sums_over_several_blocks_of_rows(share: float | None, few: bool) -> None:
    rng = np.random.default_rng(3)
    rows = 3 * kernels.BLOCK + 77
    lists = [np.sort(rng.choice(rows, size, replace=False)).astype(np.int32) for size in (9, 4_000, 30_000)]
    values = [rng.random(len(of), np.float32) + np.float32(0.1) for of in lists]
    weights = np.array([5, 2, 0.5], np.float32)
    allowed = np.ones(rows, np.bool_) if share is None else rng.random(rows) < share
    sums = np.zeros(rows, np.float32)
    for of, value, weight in zip(lists, values, weights, strict=True):
        sums[of] += weight * value
    sums *= allowed
    order = np.lexsort((np.arange(rows), -sums))[:100]
    order = order[sums[order] > 0]
    ends = np.cumsum([len(of) for of in lists])
    begins = ends - [len(of) for of in lists]
    query = np.concatenate(lists), np.concatenate(values), begins, ends, weights
    found, scores = kernels.best_sums(rows, *query, 100, allowed, few)
    assert found.tolist() == order.tolist()
    assert scores.tolist() == sums[order].tolist()
    some = rng.choice(np.flatnonzero(allowed), 40)  # in any order
    assert kernels.sums_at(*query, some).tolist() == sums[some].tolist()
