"""The dense leg and the embedder on a GPU beside the CPU: FAISS on both, the same filters, passages embedded a second.

Where there is no GPU it says so in one line, and publishes no rows.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from assay.errors import SetupError
from assay.index import dense
from assay.index.cuda import Card
from assay.index.embed import SentenceEmbedder
from assay.index.files import describe, read_checked
from assay.models import embedder_path
from bench import corpus
from bench.legs_worker import DEPTH, TOP, mask_of
from bench.report import Row, at_least, options, publish, write

WHERES = {100: "no filter", 30: "30 % filter", 1: "1 % filter"}
PASSAGES = 2_000


def main() -> None:
    def more(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--sizes", default="100000", help="rows (default: %(default)s)")
        parser.add_argument(
            "--folder", type=Path, default=corpus.FOLDER, help="where the collection is kept (default: %(default)s)"
        )

    args = options((__doc__ or "").partition("\n")[0], more=more)
    try:
        card = Card()
    except SetupError as e:
        reason = f"not measured, no GPU can be used here: {e}"
        print(reason)
        write([], args, reason)
        return
    rows: list[Row] = []
    for size in map(int, args.sizes.split(",")):
        collection = corpus.make(size, args.folder, data=args.data)
        rows += _legs(collection, card, args.quick)
    rows += _embedding(collection, args.quick)
    publish("On a GPU", rows, args, _name())


def _legs(collection: corpus.Corpus, card: Card, quick: bool) -> Iterator[Row]:
    """One list read in memory, the kinds that `auto` would choose, and the card, over the same files."""
    asked = collection.query_vectors[: 50 if quick else 300]
    vectors = np.array(collection.vectors)
    with tempfile.TemporaryDirectory() as folder:
        kind = dense.kind_for(len(vectors), "auto")
        dense.build(vectors, Path(folder), kind)
        files = {name: read_checked(Path(folder) / name, e) for name, e in describe(Path(folder)).items()}
    before = _used()
    legs = {f"CPU, {kind}": dense.load(kind, files, len(vectors)), "GPU": dense.load(kind, files, len(vectors), card)}
    yield Row(f"{len(vectors):,} | GPU | memory of the card", _used() - before, "GiB")
    for leg in legs.values():
        leg.warm()
    for where, label in WHERES.items():
        mask = mask_of(collection.tags, where)
        count = len(vectors) if mask is None else int(mask.sum())
        wanted = corpus.exact(collection.vectors, asked, TOP, mask)
        for name, leg in legs.items():
            seconds, shares = [], []
            for query, best in zip(asked, wanted, strict=True):
                start = time.perf_counter()
                found, _ = leg.search(query, DEPTH, mask, count)
                seconds.append(time.perf_counter() - start)
                if mask is not None and not mask[found].all():
                    sys.exit(f"{name} found a row that the {label} forbids")
                shares.append(len(set(found[:TOP].tolist()) & set(best.tolist())) / TOP)
            start_of = f"{len(vectors):,} | {name} | {label}: "
            yield at_least(f"{start_of}exact top 10 found", float(np.mean(shares)), "of 1", 0.95)
            for percent in (50, 95):
                yield Row(f"{start_of}p{percent}", 1000 * float(np.percentile(seconds, percent)), "ms")


def _embedding(collection: corpus.Corpus, quick: bool) -> Iterator[Row]:
    texts = collection.texts[: 200 if quick else PASSAGES]
    for device in ("cpu", "cuda"):
        encoder = SentenceEmbedder(str(embedder_path()), "cuda" if device == "cuda" else "cpu")
        encoder.embed_now(texts[:16])
        start = time.perf_counter()
        encoder.embed_now(texts)
        yield Row(f"embedder | {device} | passages", len(texts) / (time.perf_counter() - start), "1/s")


def _used() -> float:
    """GiB of the card, whoever took them: torch does not see what FAISS has."""
    import torch

    free, total = torch.cuda.mem_get_info()
    return float(total - free) / 2**30


def _name() -> str:
    import torch

    return f"one {torch.cuda.get_device_name()} beside the CPU"


if __name__ == "__main__":
    main()
