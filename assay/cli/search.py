"""``search``: an index without a running graph. Hits go to stdout; nothing else does."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer
from pydantic import TypeAdapter, ValidationError
from rich.console import Console

from assay.config import AppConfig, IndexConfig
from assay.errors import AssayError, InvalidFilter, InvalidRequest, UnknownBucket
from assay.schemas import Filter, SearchRequest
from assay.types import LEGS, Hit, SearchQuery, SearchResult

EXIT_FAULT, EXIT_USAGE = 1, 2
_SHOWN = 300  # characters of a passage in the terminal


def search(
    query: Annotated[str, typer.Argument(help="What to look for, in quotes.")],
    index: Annotated[str, typer.Option(help="Folder of the index.", envvar="ASSAY_INDEX")] = IndexConfig().uri,
    bucket: Annotated[list[str] | None, typer.Option(help="Search only here; may be repeated.")] = None,
    top_k: Annotated[int, typer.Option(min=1, max=100, help="How many passages.")] = 5,
    legs: Annotated[
        str, typer.Option(help="dense, sparse, or both; with link, also what hits mention.")
    ] = "dense,sparse",
    filters: Annotated[
        str | None, typer.Option("--filter", help='As JSON: {"field": "format", "op": "=", "value": "pdf"}')
    ] = None,
    facet: Annotated[list[str] | None, typer.Option(help="Count the values of this field; may be repeated.")] = None,
    embedder: Annotated[str, typer.Option(help="The model that made the index.")] = IndexConfig().embedder,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole result as JSON.")] = False,
) -> None:
    """Search an index on this machine, with the file, the heading, the page and the place of every hit.

    Exit status: 0 searched (with or without hits), 1 fault, 2 usage.
    """
    notes = Console(stderr=True)
    try:
        asked = _query(query, bucket or [], top_k, legs, filters, facet or [])
        result = asyncio.run(_search(asked, index, embedder))
    except (InvalidRequest, UnknownBucket) as fault:
        _complain(notes, fault)
        raise typer.Exit(EXIT_USAGE) from None
    except AssayError as fault:
        _complain(notes, fault)
        raise typer.Exit(EXIT_FAULT) from None
    if as_json:
        typer.echo(TypeAdapter(SearchResult).dump_json(result, by_alias=True, indent=2).decode())
        return
    for degraded in result.degraded:
        notes.print(f"{degraded.reason}; instead: {degraded.fallback}", style="yellow", markup=False, soft_wrap=True)
    _show(result, Console())


def _query(
    query: str, buckets: list[str], top_k: int, legs: str, filters: str | None, facets: list[str]
) -> SearchQuery:
    """Through the same shape as HTTP, so that both doors refuse the same things."""
    try:
        request = SearchRequest.model_validate(
            {
                "question": query,
                "buckets": buckets,
                "top_k": top_k,
                "legs": [leg.strip() for leg in legs.split(",")],
                "facets": facets,
            }
        )
    except ValidationError as e:
        first = e.errors()[0]
        raise InvalidRequest(f"{first['loc'][0]}: {first['msg'].removeprefix('Value error, ')}") from None
    return SearchQuery(
        queries=(request.question,),
        buckets=tuple(request.buckets),
        filters=_filter(filters) if filters else None,
        legs=tuple(leg for leg in LEGS if leg in request.legs),
        link_hop="link" in request.legs,
        top_k=request.top_k,
        facets=tuple(request.facets),
    )


def _filter(text: str) -> Filter:
    try:
        parsed: Filter = TypeAdapter[Filter](Filter).validate_json(text)
    except ValidationError as e:
        example = '{"field": "format", "op": "=", "value": "pdf"}'
        raise InvalidFilter(f"--filter is not a filter ({e.errors()[0]['msg']}); an example: {example}") from None
    return parsed


async def _search(query: SearchQuery, index: str, embedder: str) -> SearchResult:
    from assay.config import RetrieverConfig
    from assay.index.embed import SentenceEmbedder
    from assay.models import resolve_model
    from assay.retrieve import LocalRetriever

    encoder = SentenceEmbedder(resolve_model(embedder, Path(AppConfig().cache)))
    return await LocalRetriever(IndexConfig(uri=index), RetrieverConfig(), encoder).search(query)


def _show(result: SearchResult, out: Console) -> None:
    def say(text: str, style: str | None = None) -> None:
        out.print(_plain(text), style=style, markup=False, highlight=False, soft_wrap=True)

    if not result.hits:
        say("Nothing found.")
        if result.explain.blocking is not None:
            blocking = result.explain.blocking.model_dump_json(by_alias=True)
            say(f"No passage passes {blocking}; without it there are {result.explain.count_without}.")
    for number, hit in enumerate(result.hits, start=1):
        say(f"{number}. {_where(hit)}", "bold")
        say(f"   {_why(hit)}", "dim")
        text = " ".join(hit.chunk.text.split())
        say(f"   {text[:_SHOWN]}{'...' if len(text) > _SHOWN else ''}")

    for name, facet in result.facets.items():
        values = [f"{v.value}{'' if v.to is None else f' to {v.to}'} ({v.count})" for v in facet.values]
        say(f"{name}: {', '.join(values) or 'no values'}")


def _where(hit: Hit) -> str:
    page = f"page {hit.chunk.page}" if hit.chunk.page is not None else ""
    place = f"characters {hit.chunk.start}-{hit.chunk.end}"
    hidden = "hidden text" if hit.chunk.hidden else ""
    parts = (hit.chunk.uri, " > ".join(hit.chunk.heading), page, place, hidden)
    return ", ".join(part for part in parts if part)


def _why(hit: Hit) -> str:
    ranks = [f"{leg} rank {rank}" for leg, rank in sorted(hit.ranks.items())]
    cosine = [] if hit.similarity is None else [f"cosine {hit.similarity:.3f}"]
    return ", ".join([f"score {hit.score:.3f}", *ranks, *cosine])


def _plain(text: str) -> str:
    """Texts come from documents: no escape sequence of theirs may reach the terminal."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def _complain(notes: Console, fault: AssayError) -> None:
    allowed = f" (there are: {', '.join(fault.allowed)})" if fault.allowed else ""
    notes.print(f"{fault}{allowed}", style="red", markup=False, highlight=False, soft_wrap=True)
