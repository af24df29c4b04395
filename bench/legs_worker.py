"""One leg of ``bench.legs`` in a process of its own: built, opened, tuned and asked."""

import gc
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import bm25s
import faiss
import numpy as np
from numpy.typing import NDArray

from assay.config import Legs
from assay.index import dense, kernels, lists, sparse
from assay.index.analyser import Terms
from assay.index.dense import Ids, Mask, Scores
from assay.index.files import describe, read_checked
from assay.index.lists import blocks, centres_of
from assay.text import query_terms
from bench.corpus import Texts

DIM, DEPTH, TOP = 384, 100, 10
PROBES = (2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096)
DEPTHS = (100, 150, 200, 300, 400, 600, 800, 1200, 2000, 4000, 8000)
REFINED = 2
GIVEN = 200_000  # above so many rows, the lists of Assay's leg are taken: to find them again takes minutes for each


@dataclass(frozen=True)
class Job:
    """The collection's files, and where a leg is kept. ``tags`` and the questions lie in the folder above."""

    rows: int
    files: tuple[Path, Path, Path]
    folder: Path
    name: str

    @property
    def vectors(self) -> NDArray[np.float16]:
        return np.memmap(self.files[2], np.float16, "r").reshape(-1, DIM)[: self.rows]

    @property
    def texts(self) -> Texts:
        return Texts(np.memmap(self.files[0], np.uint8, "r"), np.fromfile(self.files[1], np.int64, count=self.rows))


class Leg(Protocol):
    """``knobs``: what it can be set to, cheapest first; none for a leg that sets itself."""

    knobs: tuple[int, ...]

    def build(self, job: Job) -> None: ...
    def open(self, job: Job) -> None: ...
    def ask(self, number: int, allowed: Mask | None, count: int, knob: int) -> tuple[Ids, Scores]:
        """The best ``DEPTH`` rows for a question, and their scores."""
        ...


class Kind:
    """A kind of Assay's dense leg, as it is."""

    knobs: tuple[int, ...] = ()

    def __init__(self, kind: dense.Kind) -> None:
        self._kind = kind

    def build(self, job: Job) -> None:
        dense.build(np.array(job.vectors), job.folder, self._kind)

    def open(self, job: Job) -> None:
        self._leg = dense.load(self._kind, _read(job.folder), job.rows)
        self._queries = np.load(job.folder.parent / "query_vectors.npy")

    def ask(self, number: int, allowed: Mask | None, count: int, knob: int) -> tuple[Ids, Scores]:
        return self._leg.search(self._queries[number], DEPTH, allowed, count)


class Faiss:
    """A FAISS index with its selector, and the number of probes, or the depth, that it is tuned to."""

    def __init__(self, kind: str, refined: bool = False) -> None:
        self._kind, self._refined = kind, refined
        self.knobs: tuple[int, ...] = DEPTHS if kind == "hnsw" else PROBES

    def build(self, job: Job) -> None:
        vectors, given = np.array(job.vectors), None
        if job.rows > GIVEN and self._kind != "hnsw":
            given = _lists(job)
        index = self._new(vectors, given and given[0])
        if not index.is_trained:
            index.train(vectors[np.random.default_rng(0).permutation(job.rows)[:65_536]].astype(np.float32))
        for start, part in blocks(vectors):
            if given is None:
                index.add(part)
                continue
            of = given[1][start : start + len(part)]
            index.add_core(len(part), faiss.swig_ptr(part), None, faiss.swig_ptr(of))
        faiss.write_index(index, str(job.folder / "index.faiss"))
        if self._refined:
            np.save(job.folder / "vectors.npy", vectors)

    def _new(self, vectors: NDArray[np.float16], centres: Any) -> Any:
        codes, metric = faiss.ScalarQuantizer, faiss.METRIC_INNER_PRODUCT
        if self._kind == "hnsw":
            index = faiss.IndexHNSWSQ(DIM, codes.QT_8bit, 32, metric)
            index.hnsw.efConstruction = 80
            return index
        centres = centres_of(vectors) if centres is None else centres
        if self._kind == "flat":
            return faiss.IndexIVFFlat(centres, DIM, centres.ntotal, metric)
        code = codes.QT_8bit if self._kind == "sq8" else codes.QT_fp16
        return faiss.IndexIVFScalarQuantizer(centres, DIM, centres.ntotal, code, metric)

    def open(self, job: Job) -> None:
        faiss.omp_set_num_threads(1)  # two threads wait for each other longer than one question takes
        self._index = faiss.read_index(str(job.folder / "index.faiss"))
        self._vectors = np.load(job.folder / "vectors.npy").view(np.uint16) if self._refined else None
        self._selectors: dict[int, Any] = {}
        self._queries = np.load(job.folder.parent / "query_vectors.npy")

    def ask(self, number: int, allowed: Mask | None, count: int, knob: int) -> tuple[Ids, Scores]:
        query, sel = self._queries[number], None
        if allowed is not None:
            if id(allowed) not in self._selectors:
                bits = np.packbits(allowed, bitorder="little")
                self._selectors[id(allowed)] = faiss.IDSelectorBitmap(bits)
            sel = self._selectors[id(allowed)]
        if self._kind == "hnsw":
            how = faiss.SearchParametersHNSW(efSearch=knob, sel=sel)
        else:
            how = faiss.SearchParametersIVF(nprobe=knob, sel=sel)
        scores, found = self._index.search(query[None], DEPTH * (REFINED if self._refined else 1), params=how)
        kept = found[0] >= 0
        if self._vectors is None:
            return found[0][kept], scores[0][kept]
        rows = found[0][kept]
        return cast(tuple[Ids, Scores], kernels.best_of(rows, kernels.dots(self._vectors, rows, query), DEPTH))


class Postings:
    """Assay's sparse leg, of terms that are analysed already."""

    knobs: tuple[int, ...] = ()

    def build(self, job: Job) -> None:
        terms, legs = _terms(job), Legs()
        sparse.build(terms, job.folder, legs.k1, legs.b, terms.mean)

    def open(self, job: Job) -> None:
        self._leg = sparse.Sparse(_read(job.folder), job.rows)
        self._asked = _questions(job)
        counts = self._leg.counts(None)
        names = {term for question in self._asked for term in question}
        rows = {term: int(counts[self._leg.place(term)]) for term in names}
        self._rarity = {term: float(np.log(1 + (job.rows - n + 0.5) / (n + 0.5))) for term, n in rows.items()}

    def ask(self, number: int, allowed: Mask | None, count: int, knob: int) -> tuple[Ids, Scores]:
        terms = self._asked[number]
        weights = [(term, terms.count(term) * self._rarity[term]) for term in dict.fromkeys(terms)]
        return self._leg.search(self._leg.weighted(weights), DEPTH, allowed, count)


class Bm25s:
    """bm25s with numba, of the same terms and constants; a filter is a mask of weights."""

    knobs: tuple[int, ...] = ()

    def build(self, job: Job) -> None:
        terms, legs = _terms(job), Legs()
        rows = [row.tolist() for row in np.split(terms.ids, np.cumsum(terms.lengths)[:-1])]
        index = bm25s.BM25(k1=legs.k1, b=legs.b, backend="numba")
        index.index((rows, {name: place for place, name in enumerate(terms.names)}), show_progress=False)
        index.save(str(job.folder), show_progress=False)

    def open(self, job: Job) -> None:
        self._index = bm25s.BM25.load(str(job.folder), load_corpus=False)
        self._index.backend = "numba"
        self._asked = _questions(job)
        self._masks: dict[int, Scores] = {}

    def ask(self, number: int, allowed: Mask | None, count: int, knob: int) -> tuple[Ids, Scores]:
        mask = None
        if not self._asked[number]:
            return np.zeros(0, np.int64), np.zeros(0, np.float32)  # which it refuses
        if allowed is not None:
            mask = self._masks.setdefault(id(allowed), allowed.astype(np.float32))
        rows, scores = self._index.retrieve(
            [self._asked[number]], k=DEPTH, show_progress=False, weight_mask=mask, n_threads=0
        )
        kept = scores[0] > 0
        return rows[0][kept], scores[0][kept]


LEGS: dict[str, Callable[[], Leg]] = {
    "ivf": lambda: Kind("ivf"),
    "sq8": lambda: Kind("sq8"),
    "hnsw": lambda: Kind("hnsw"),
    "FAISS IVFFlat": lambda: Faiss("flat"),
    "FAISS IVF fp16": lambda: Faiss("fp16"),
    "FAISS IVF SQ8 + refinement": lambda: Faiss("sq8", refined=True),
    "FAISS HNSW SQ8 + refinement": lambda: Faiss("hnsw", refined=True),
    "postings": Postings,
    "bm25s": Bm25s,
}


# ---- what a process is asked for ----------------------------------------------------------------------------------------


def analyse(job: Job) -> float:
    """Of all texts, once for both sparse legs: seconds. And of the questions."""
    start = time.perf_counter()
    terms = sparse.analyse(list(job.texts[at : at + 20_000]) for at in range(0, job.rows, 20_000))
    seconds = time.perf_counter() - start
    np.savez(job.folder / "terms.npz", ids=terms.ids, lengths=terms.lengths)
    (job.folder / "names.json").write_text(json.dumps(terms.names))
    vocabulary = set(terms.names)
    questions = json.loads((job.folder.parent / "queries.json").read_text())
    asked = [query_terms(question, vocabulary) for question in questions]
    (job.folder / "asked.json").write_text(json.dumps(asked))
    return seconds


def build(job: Job) -> float:
    """Seconds, but for the import of what is needed."""
    leg = LEGS[job.name]()
    start = time.perf_counter()
    leg.build(job)
    return time.perf_counter() - start


def opened(job: Job) -> float:
    """GiB that opening added to memory which no file backs."""
    global _open, _tags
    leg = LEGS[job.name]()
    before = _private()
    leg.open(job)
    gc.collect()
    _open, _tags = leg, np.load(job.folder.parent / "tags.npy")
    _allowed.clear()
    return _private() - before


def found(where: int, numbers: list[int], knob: int) -> list[tuple[list[int], list[float]]]:
    """The best ten rows and scores for some questions, of equal scores the lower rows, as in the exact ones: FAISS orders
    those otherwise, and there are passages that are there twice."""
    allowed, count = _mask(where)
    answers = [_open.ask(number, allowed, count, knob) for number in numbers]
    orders = [np.lexsort((rows, -np.round(scores, 5)))[:TOP] for rows, scores in answers]
    return [(rows[o].tolist(), scores[o].tolist()) for (rows, scores), o in zip(answers, orders, strict=True)]


def knobs() -> tuple[int, ...]:
    return _open.knobs


def taken(where: int, numbers: list[int], knob: int) -> list[float]:
    """Seconds of each question, one after the other."""
    allowed, count = _mask(where)
    for number in numbers[:20]:
        _open.ask(number, allowed, count, knob)
    seconds = []
    for number in numbers:
        start = time.perf_counter()
        _open.ask(number, allowed, count, knob)
        seconds.append(time.perf_counter() - start)
    return seconds


_open: Leg
_tags: NDArray[np.int64]
_allowed: dict[int, tuple[Mask | None, int]] = {}


def mask_of(tags: NDArray[np.int64], where: int) -> Mask | None:
    """``where``: the percentage of rows that are allowed."""
    return None if where == 100 else tags == 7 if where == 1 else tags < where


def _mask(where: int) -> tuple[Mask | None, int]:
    if where not in _allowed:
        mask = mask_of(_tags, where)
        _allowed[where] = mask, len(_tags) if mask is None else int(mask.sum())
    return _allowed[where]


def _read(folder: Path) -> dict[str, Any]:
    return {n: read_checked(folder / n, e) for n, e in describe(folder).items() if n.startswith(("dense.", "sparse."))}


def _lists(job: Job) -> tuple[Any, NDArray[np.int64]]:
    """The centres of the leg ``ivf`` over the same rows, as an index, and the list of each row."""
    folder = job.folder.parent / "ivf"
    centres = np.load(folder / lists.CENTRES).astype(np.float32)
    index = faiss.IndexFlatIP(DIM)
    index.add(centres)
    of = np.empty(job.rows, np.int64)
    sizes = np.diff(np.load(folder / lists.STARTS))
    of[np.load(folder / lists.POSITIONS)] = np.repeat(np.arange(len(centres)), sizes)
    return index, of


def _terms(job: Job) -> Terms:
    folder = job.folder.parent / "terms"
    held = np.load(folder / "terms.npz")
    return Terms(held["ids"], held["lengths"], json.loads((folder / "names.json").read_text()))


def _questions(job: Job) -> list[list[str]]:
    asked: list[list[str]] = json.loads((job.folder.parent / "terms" / "asked.json").read_text())
    return asked


def _private() -> float:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["RssAnon"].split()[0]) / 2**20
