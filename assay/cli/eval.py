"""``eval ranking``: how well a search ranks, on judged queries. Tables go to stdout, progress and faults to stderr."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from assay.cli.meter import Meter
from assay.cli.targets import check_targets
from assay.config import AppConfig, IndexConfig
from assay.errors import AssayError, InvalidRequest, in_words

if TYPE_CHECKING:
    from assay.eval.collection import Collection
    from assay.eval.compare import Ranking
    from assay.eval.metrics import Values
    from assay.eval.ranking import Bench
    from assay.eval.setups import Setup

EXIT_FAULT, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130


def ranking(
    corpus: Annotated[
        Path, typer.Option(help="Documents: BEIR's jsonl, TREC, SMART, or id, tab, text; a file or a folder.")
    ],
    queries: Annotated[Path, typer.Option(help="Queries: BEIR's jsonl, TREC's topics, SMART, or id, tab, text.")],
    qrels: Annotated[Path, typer.Option(help="Judgments: BEIR's tsv, or TREC's qrels.")],
    config: Annotated[
        list[str] | None,
        typer.Option(
            help='NAME=JSON with options of the config\'s retriever, "k1", "b" and "dense" of its index, and "legs", such as '
            'heavy={"dense_weight": 0.8}; or a '
            "known one: default, dense, sparse, rrf, minmax, link. May be repeated; the first is what the others are "
            "compared with. All known ones where none is given."
        ),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            help="As ir-measures names them; may be repeated. The first is compared. nDCG@10, R@5, R@100 and RR@10 where "
            "none is given."
        ),
    ] = None,
    gains: Annotated[
        str, typer.Option(help="What a grade is worth: linear, exponential (2^grade - 1), or pairs such as 1=4,2=3.")
    ] = "linear",
    as_json: Annotated[Path | None, typer.Option("--json", help="Write all figures here, of every query.")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the comparison: a file that ends in .svg, .png or .pdf.")
    ] = None,
    show: Annotated[int, typer.Option(min=0, max=100, help="Queries to name that were won and lost by most.")] = 3,
    cache: Annotated[
        Path, typer.Option(help="Folder where the collection's index is kept: a second run only compares.")
    ] = Path(".assay/eval"),
    embedder: Annotated[str, typer.Option(help="A model folder or id.")] = IndexConfig().embedder,
) -> None:
    """Measure how well configurations of the search rank the documents of a judged collection, and compare them.

    The collection goes through the real index. It may be interrupted at any time: what is embedded is kept, and the same
    command goes on.

    Exit status: 0 measured, 1 fault, 2 usage, 130 interrupted.
    """
    notes = Console(stderr=True)
    try:
        from assay.eval.collection import read_collection
        from assay.eval.metrics import DEFAULT, checked
        from assay.eval.plot import KINDS
        from assay.eval.report import as_json as figures
        from assay.eval.setups import setups

        chosen, metrics = setups(config or []), list(dict.fromkeys(metric or DEFAULT))
        checked(metrics)
        check_targets({"json": as_json, "plot": plot}, {"plot": KINDS})
        collection = read_collection(corpus, queries, qrels, gains)
        bench = _bench(collection, cache, embedder)
        compared = _run(bench, chosen, metrics, notes)
        _tell(compared, bench, metrics, show)
        if as_json is not None:
            files = {"corpus": str(corpus), "queries": str(queries), "qrels": str(qrels), "gains": gains}
            sizes = {"documents": len(collection.documents), "measured": len(collection.queries)}
            found: dict[str, Any] = {**files, **sizes, **figures(compared, chosen)}
            as_json.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", "utf-8")
        if plot is not None:
            from assay.eval.plot import draw, panels

            draw(plot, panels(compared, metrics), _title(bench))
    except AssayError as fault:
        _complain(notes, in_words(fault))
        raise typer.Exit(EXIT_USAGE if isinstance(fault, InvalidRequest) else EXIT_FAULT) from None
    except OSError as fault:
        _complain(notes, f"'{fault.filename or 'a file'}' cannot be written: {fault.strerror or fault}")
        raise typer.Exit(EXIT_FAULT) from None
    except KeyboardInterrupt:
        _complain(notes, "Interrupted: what is embedded is kept. The same command goes on from there.")
        raise typer.Exit(EXIT_INTERRUPTED) from None


def _bench(collection: "Collection", cache: Path, embedder: str) -> "Bench":
    from assay.eval.ranking import Bench
    from assay.index.embed import SentenceEmbedder
    from assay.models import resolve_model

    return Bench(collection, cache, SentenceEmbedder(resolve_model(embedder, Path(AppConfig().cache))))


def _run(bench: "Bench", setups: "Sequence[Setup]", metrics: Sequence[str], notes: Console) -> "Ranking":
    """Where it is broken off, what is finished is shown."""
    from assay.eval.compare import compared

    finished: dict[str, Values] = {}
    with Meter(notes, "documents") as meter:
        bench.index(meter.show)
    try:
        with Meter(notes) as meter:
            return bench.compare(setups, metrics, meter.count, finished.__setitem__)
    except KeyboardInterrupt:
        if finished:
            _tell(compared(finished, setups[0].name), bench, metrics, 0)
        raise


def _tell(ranking: "Ranking", bench: "Bench", metrics: Sequence[str], show: int) -> None:
    from assay.eval.report import extremes, tables

    out = Console(width=None if sys.stdout.isatty() else 120)
    out.print(_title(bench), markup=False, highlight=False)
    for table, signs in tables(ranking, metrics):
        out.print(table)
        out.print(signs, markup=False, highlight=False)
    for line in extremes(ranking, metrics[0], bench.collection.queries, show):
        out.print(line, markup=False, highlight=False, soft_wrap=True)


def _title(bench: "Bench") -> str:
    return f"{len(bench.collection.documents)} documents, {len(bench.collection.queries)} queries"


def _complain(notes: Console, text: str) -> None:
    notes.print(text, style="red", markup=False, highlight=False, soft_wrap=True)
