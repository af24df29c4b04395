"""A collection of any size with realistic texts and vectors, for measurements. ``python -m bench.corpus`` checks how realistic.

Real are: the first rows, passages of the shared data sets (documentation, abstracts, encyclopedia, contracts) under their
own titles, in shuffled order; and all queries, the questions of those sets. Both have the vectors that Assay's own
embedder gives them. Two cores embed some 25 passages a second, so a million of them are out of reach.

Synthetic are all further rows. Each mixes two or three real passages that are near each other: its text is a run of whole
sentences from each, as long together as some real passage; its vector is the mean of theirs, weighted by the share of text
that each gave, plus the difference of two other real neighbours (noise with the spread that neighbours really have),
scaled to length 1. So terms keep their real frequencies relative to each other, but the vocabulary stays that of the real
rows: a rare word is in as many more rows as there are more rows, where a real collection would bring new rare words. That
makes the lists of a sparse index longer than they would be, not shorter.
"""

import argparse
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import overload

import numpy as np
from numpy.typing import NDArray
from rich.progress import Progress

from assay.index.embed import SentenceEmbedder
from assay.models import embedder_path
from bench.report import Row, options, publish

Vectors = NDArray[np.float32]

FOLDER = Path("~/.cache/assay/bench").expanduser()
VERSION = 1  # of what is made here: another one is made anew
_QUERIES = 250  # most of one set, so that none outweighs the others
_FILES = 800  # most passages of documentation, and of contracts
_PARAGRAPH = 400  # characters, from which paragraphs are a passage
_REAL = 10_000  # passages in all
_CHARS = 2_000  # the embedder reads no further
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
_NEAR = 16  # neighbours that a passage is mixed with
_NOISE = 0.5  # weight of the difference of two neighbours
_BLOCK = 5_000
_PIECE = 20_000  # rows that are compared at a time


class Texts(Sequence[str]):
    """Texts of a file that is mapped, not read: a million of them cost no memory that the system could not take back."""

    def __init__(self, data: "np.memmap[tuple[int], np.dtype[np.uint8]]", ends: NDArray[np.int64]) -> None:
        self._data, self._ends = data, ends

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> list[str]: ...
    def __getitem__(self, at: int | slice) -> str | list[str]:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        if not -len(self) <= at < len(self):
            raise IndexError(f"text {at} of {len(self)}")
        at %= len(self)
        start = int(self._ends[at - 1]) if at else 0
        return bytes(self._data[start : int(self._ends[at])]).decode()


@dataclass(frozen=True, slots=True)
class Corpus:
    """``vectors``: unit but for rounding, float16 of shape (rows, dim), mapped. The first ``real`` rows are real passages.

    ``query_vectors``: unit float32. ``tags``: a number from 0 to 99 a row, evenly and without regard to the content, so
    that ``tag == 7`` selects 1 % and ``tag < 30`` 30 %.
    """

    texts: Texts
    vectors: NDArray[np.float16]
    tags: NDArray[np.int64]
    queries: tuple[str, ...]
    query_vectors: Vectors
    real: int
    files: tuple[Path, Path, Path]
    """The texts (UTF-8, one after the other), the bytes at which each ends (int64), and the vectors."""

    def __len__(self) -> int:
        return len(self.texts)


def make(rows: int, folder: Path, seed: int = 7, data: Path = Path("../shared/data")) -> Corpus:
    """The first ``rows`` rows of the collection of a seed, which is kept in the folder and grows as rows are asked for.

    A shorter collection is the beginning of a longer one. Goes on where an earlier call was interrupted. The first call
    embeds the real passages (some ten minutes on two cores); growing to a million takes minutes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    real, queries = _real(data, seed)
    vectors, query_vectors = _embedded(real, folder), _embedded(queries, folder)
    files = _Files(folder / f"grown-{seed}", _key(real))
    done = files.rows()
    if done < rows:
        with Progress() as progress:
            task = progress.add_task(f"growing the collection to {rows:,}", total=rows, completed=done)
            for texts, block in _blocks(real, vectors, seed, done):
                files.append(texts, block)
                progress.update(task, completed=files.rows())
                if files.rows() >= rows:
                    break
    kept, mapped = files.read(rows)
    return Corpus(kept, mapped, _tags(rows), tuple(queries), query_vectors, min(rows, len(real)), files.paths)


def exact(
    vectors: NDArray[np.float16], queries: Vectors, k: int, allowed: NDArray[np.bool_] | None = None
) -> NDArray[np.int64]:
    """The rows nearest to each query by inner product, best first, shape (queries, k), by comparing all; ties by row.

    -1 where fewer than k are allowed."""
    kept = np.arange(len(vectors)) if allowed is None else np.flatnonzero(allowed)
    best = np.full((len(queries), k), -np.inf, np.float32)
    rows = np.full((len(queries), k), -1, np.int64)
    for start in range(0, len(kept), _PIECE):
        here = kept[start : start + _PIECE]
        piece = vectors[here].astype(np.float32)
        for first in range(0, len(queries), 1024):
            part = slice(first, first + 1024)
            scores = queries[part] @ piece.T
            nearest = np.argpartition(-scores, min(k, len(here)) - 1, axis=1)[:, :k]
            merged = np.concatenate([best[part], np.take_along_axis(scores, nearest, 1)], axis=1)
            found = np.concatenate([rows[part], here[nearest]], axis=1)
            order = np.lexsort((found, -merged))[:, :k]
            best[part], rows[part] = np.take_along_axis(merged, order, 1), np.take_along_axis(found, order, 1)
    return rows


# ---- what is real ---------------------------------------------------------------------------------------------------


def _real(data: Path, seed: int) -> tuple[list[str], list[str]]:
    """Passages and queries of the data sets, each text once, shuffled."""
    sets: list[tuple[list[str], list[str]]] = [
        _dbpedia(data / "ranking" / "dbpedia_entity_5k"),
        _cranfield(data / "ranking" / "cranfield"),
        _hotpot(data / "multihop" / "hotpotqa_100"),
        _musique(data / "multihop" / "musique_50"),
        _xquad(data / "ranking" / "xquad"),
        _squad(data / "unanswerable" / "squad2_250"),
        (_some(_paragraphs(data / "markdown" / "kserve_docs", "*.md*"), _FILES, [seed, 1]), []),
        (_some(_paragraphs(data / "contracts" / "cuad" / "txt", "*.txt"), _FILES, [seed, 2]), []),
    ]
    passages = list(dict.fromkeys(text[:_CHARS].strip() for texts, _ in sets for text in texts if text.strip()))
    queries = list(dict.fromkeys(q for i, (_, asked) in enumerate(sets) for q in _some(asked, _QUERIES, [seed, 3, i])))
    return _some(passages, _REAL, [seed, 4]), _some(queries, len(queries), [seed, 5])


def _some(items: Sequence[str], most: int, seed: list[int]) -> list[str]:
    return [items[i] for i in np.random.default_rng(seed).permutation(len(items))[:most]]


def _titled(title: str, text: str) -> str:
    return f"{title}\n{text}"


def _dbpedia(folder: Path) -> tuple[list[str], list[str]]:
    docs = [json.loads(line) for line in (folder / "corpus.jsonl").read_text().splitlines()]
    queries = [json.loads(line)["text"] for line in (folder / "queries.jsonl").read_text().splitlines()]
    return [_titled(d["title"], d["text"]) for d in docs], queries


def _cranfield(folder: Path) -> tuple[list[str], list[str]]:
    def field(record: str, name: str) -> str:
        found = re.search(rf"^\.{name}\n(.*?)(?=^\.[A-Z]\n|\Z)", record, re.M | re.S)
        return " ".join(found.group(1).split()) if found else ""

    docs = re.split(r"^\.I .*\n", (folder / "cran.all.1400").read_text(), flags=re.M)[1:]
    asked = re.split(r"^\.I .*\n", (folder / "cran.qry").read_text(), flags=re.M)[1:]
    return [_titled(field(d, "T"), field(d, "W")) for d in docs if field(d, "W")], [field(q, "W") for q in asked]


def _hotpot(folder: Path) -> tuple[list[str], list[str]]:
    docs = json.loads((folder / "hotpotqa_train_corpus.json").read_text())
    asked = json.loads((folder / "hotpotqa_train.json").read_text())
    return [_titled(title, "".join(parts)) for title, parts in docs.items()], [q["question"] for q in asked]


def _musique(folder: Path) -> tuple[list[str], list[str]]:
    docs = json.loads((folder / "corpus.json").read_text())
    asked = json.loads((folder / "questions.json").read_text())
    return [_titled(d["title"], d["text"]) for d in docs], [q["question"] for q in asked]


def _xquad(folder: Path) -> tuple[list[str], list[str]]:
    articles = json.loads((folder / "xquad.en.json").read_text())["data"]
    paragraphs = [p for article in articles for p in article["paragraphs"]]
    return [p["context"] for p in paragraphs], [q["question"] for p in paragraphs for q in p["qas"]]


def _squad(folder: Path) -> tuple[list[str], list[str]]:
    asked = json.loads((folder / "queries.json").read_text())["queries"]
    return [q["context"] for q in asked], [q["question"] for q in asked]


def _paragraphs(folder: Path, names: str) -> list[str]:
    """Paragraphs of files, short ones together. Not by Assay's own parsers: they get better, and the collection must stay."""
    texts = []
    for path in sorted(folder.rglob(names)):
        held = ""
        for paragraph in re.split(r"\n\s*\n", path.read_text(errors="replace")):
            held = f"{held}\n\n{paragraph}".strip()
            if len(held) > _PARAGRAPH:
                texts.append(_titled(path.stem, held))
                held = ""
        texts += [_titled(path.stem, held)] if held else []
    return texts


def _embedded(texts: Sequence[str], folder: Path) -> Vectors:
    """Vectors of the texts. Each is kept, by the text's sha256, and never made twice."""
    encoder = SentenceEmbedder(str(embedder_path()))
    vectors, keys = (folder / f"embedded-{encoder.checksum[:12]}.{kind}" for kind in ("f4", "sha256"))
    row, wanted = 4 * encoder.dim, {text: hashlib.sha256(text.encode()).digest() for text in texts}
    held = keys.read_bytes() if keys.exists() else b""
    at = {held[i : i + 32]: i // 32 for i in range(0, len(held) // 32 * 32, 32)}
    missing = [text for text, key in wanted.items() if key not in at]
    if missing:
        with Progress() as progress:
            task = progress.add_task(f"embedding {len(missing):,} real texts", total=len(missing))
            for start in range(0, len(missing), 256):
                part = missing[start : start + 256]
                _write(vectors, len(at) * row, encoder.embed_now(part).tobytes())
                _write(keys, len(at) * 32, b"".join(wanted[text] for text in part))
                at.update({wanted[text]: len(at) + i for i, text in enumerate(part)})
                progress.update(task, advance=len(part))
    return np.fromfile(vectors, np.float32).reshape(-1, encoder.dim)[[at[wanted[text]] for text in texts]]


def _key(texts: Sequence[str]) -> str:
    digest = hashlib.sha256(b"%d\n" % VERSION)
    for text in texts:
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()[:12]


# ---- what is grown --------------------------------------------------------------------------------------------------


class _Files:
    """Three files that grow row by row: texts, where each ends, and vectors. What is not whole in all is cut off."""

    def __init__(self, folder: Path, key: str) -> None:
        folder = folder.with_name(f"{folder.name}-{key}")
        folder.mkdir(exist_ok=True)
        self.paths = (folder / "texts.u8", folder / "ends.i8", folder / "vectors.f2")
        self._texts, self._ends, self._vectors = self.paths

    def rows(self) -> int:
        return self._ends.stat().st_size // 8 if self._ends.exists() else 0

    def append(self, texts: Sequence[str], vectors: Vectors) -> None:
        """``ends`` is written last: it says how much of the other two counts."""
        rows, data = self.rows(), [text.encode() for text in texts]
        last = int(np.fromfile(self._ends, np.int64, count=1, offset=8 * (rows - 1))[0]) if rows else 0
        _write(self._texts, last, b"".join(data))
        _write(self._vectors, rows * vectors.shape[1] * 2, vectors.astype(np.float16).tobytes())
        _write(self._ends, rows * 8, (last + np.cumsum([len(d) for d in data])).astype(np.int64).tobytes())

    def read(self, rows: int) -> tuple[Texts, NDArray[np.float16]]:
        ends = np.fromfile(self._ends, np.int64, count=rows)
        vectors = np.memmap(self._vectors, np.float16, "r").reshape(-1, 384)[:rows]
        return Texts(np.memmap(self._texts, np.uint8, "r"), ends), vectors


def _write(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b" if path.exists() else "w+b") as file:
        file.truncate(at)
        file.seek(at)
        file.write(data)


def _blocks(real: Sequence[str], vectors: Vectors, seed: int, done: int) -> Iterator[tuple[list[str], Vectors]]:
    """The rows after the first ``done``: the real ones, then grown ones, each block by random numbers of its own."""
    if done == 0:
        yield list(real), vectors
    near = exact(vectors.astype(np.float16), vectors, _NEAR + 1)
    units = [[unit for unit in _SENTENCE.split(text) if unit] for text in real]
    first = max(0, done - len(real)) // _BLOCK
    while True:
        yield _grown(real, units, vectors, near, np.random.default_rng([seed, first]))
        first += 1


def _grown(
    real: Sequence[str], units: Sequence[list[str]], vectors: Vectors, near: NDArray[np.int64], rng: np.random.Generator
) -> tuple[list[str], Vectors]:
    anchors, lengths = rng.integers(len(real), size=(2, _BLOCK))
    texts, mixed = [], np.zeros((_BLOCK, vectors.shape[1]), np.float32)
    for i, (anchor, length) in enumerate(zip(anchors.tolist(), lengths.tolist(), strict=True)):
        others = rng.choice(_NEAR, size=rng.integers(1, 3), replace=False) + 1
        parents = [anchor, *near[anchor, others].tolist()]
        wanted = rng.dirichlet([2.0] * len(parents)) * len(real[length])
        parts = [_run(units[p], w, rng) for p, w in zip(parents, wanted.tolist(), strict=True)]
        texts.append("\n".join(parts))
        shares = np.array([len(part) for part in parts], np.float32)
        mixed[i] = (shares / shares.sum()) @ vectors[parents]
    one = rng.integers(len(real), size=_BLOCK)
    other = near[one, rng.integers(1, _NEAR + 1, size=_BLOCK)]
    mixed += _NOISE * (vectors[one] - vectors[other])
    return texts, mixed / np.linalg.norm(mixed, axis=1, keepdims=True)


def _run(units: list[str], chars: float, rng: np.random.Generator) -> str:
    """A run of whole sentences that begins anywhere, about as long as wanted; a sentence far too long is cut at a word."""
    start, run = int(rng.integers(len(units))), ""
    for unit in units[start:]:
        run = f"{run} {unit}" if run else unit
        if len(run) >= chars:
            break
    most = max(80, round(1.5 * chars))
    return run if len(run) <= most else run[:most].rpartition(" ")[0] or run[:most]


def _tags(rows: int) -> NDArray[np.int64]:
    mixed = np.arange(rows, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return ((mixed >> np.uint64(40)) % np.uint64(100)).astype(np.int64)


# ---- how realistic it is --------------------------------------------------------------------------------------------


def check(corpus: Corpus, most: int = 12_000) -> list[Row]:
    """The same figures of real rows and of as many grown ones, side by side; the closer, the more realistic."""
    count = min(most, corpus.real, len(corpus) - corpus.real)
    rng = np.random.default_rng(0)
    parts = {
        "real": rng.permutation(corpus.real)[:count],
        "grown": corpus.real + rng.permutation(len(corpus) - corpus.real)[:count],
    }
    return [row for name, rows in parts.items() for row in _figures(name, corpus, np.sort(rows))]


def _figures(name: str, corpus: Corpus, rows: NDArray[np.int64]) -> list[Row]:
    vectors = np.asarray(corpus.vectors[rows])
    wide = vectors.astype(np.float32)
    asked = np.take_along_axis(corpus.query_vectors @ wide.T, exact(vectors, corpus.query_vectors, 10), 1)
    some = slice(0, 2_000)
    near = exact(vectors, wide[some], 51)[:, 1:]
    cosines = np.take_along_axis(wide[some] @ wide.T, near, 1)
    distances = np.sqrt(np.maximum(2 - 2 * cosines.astype(np.float64), 1e-9))
    dimension = 1 / np.maximum(np.log(distances[:, -1:] / distances[:, :-1]).mean(1), 1e-9)
    words = Counter(word for row in rows for word in set(re.findall(r"\w+", corpus.texts[row].lower())))
    shares = np.array(sorted(words.values(), reverse=True)) / len(rows)
    return [
        Row(f"{name}: cosine of a query to its best row, mean", float(asked[:, 0].mean()), ""),
        Row(f"{name}: cosine of a query to its 10th row, mean", float(asked[:, 9].mean()), ""),
        *(
            Row(f"{name}: cosine of a row to its nearest, {p}th percentile", float(np.percentile(cosines[:, 0], p)), "")
            for p in (10, 50, 90)
        ),
        Row(f"{name}: cosine of a row to its 50th nearest, median", float(np.median(cosines[:, 49])), ""),
        Row(f"{name}: dimension of the neighbourhood (50 nearest), median", float(np.median(dimension)), ""),
        Row(f"{name}: characters of a row, median", float(np.median([len(corpus.texts[r]) for r in rows])), ""),
        Row(f"{name}: words with a list of rows", float(len(words)), "words"),
        *(
            Row(f"{name}: rows with the {n}th most common word", 100 * float(shares[n - 1]), "%")
            for n in (10, 100, 1000)
        ),
    ]


def main() -> None:
    def more(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--rows", type=int, default=100_000, help="default: %(default)s")
        parser.add_argument("--folder", type=Path, default=FOLDER, help="where it is kept (default: %(default)s)")

    args = options((__doc__ or "").partition("\n")[0], more=more)
    corpus = make(args.rows, args.folder, data=args.data)
    publish(f"A collection of {len(corpus):,} rows", check(corpus), args, "real rows, and as many grown ones")


if __name__ == "__main__":
    main()
