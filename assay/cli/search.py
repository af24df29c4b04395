"""``search``: an index of this machine, or what a running graph searches. Hits go to stdout; nothing else does."""

import asyncio
import logging
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import TypeAdapter, ValidationError
from rich.console import Console
from ulid import ULID

from assay import serve_config
from assay.cli.settings import ApiKey, index_settings
from assay.client import Client
from assay.config import AppConfig
from assay.errors import AssayError, InvalidFilter, InvalidRequest, UnknownBucket, in_words
from assay.schemas import Filter, Fusion, SearchHit, SearchRequest, SearchResponse
from assay.statements import blocking_parts, empty, there_are

EXIT_FAULT, EXIT_USAGE = 1, 2


def search(
    query: Annotated[str, typer.Argument(help="What to look for, in quotes.")],
    index: Annotated[
        str | None, typer.Option(help="Folder or URI of the index; by default the config's.", envvar="ASSAY_INDEX")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="A Serve config, whose index this is, and whose retriever's settings hold.")
    ] = None,
    bucket: Annotated[list[str] | None, typer.Option(help="Search only here; may be repeated.")] = None,
    top_k: Annotated[int, typer.Option(min=1, max=100, help="How many passages.")] = 5,
    legs: Annotated[
        str, typer.Option(help="dense, sparse, or both; with link, also what hits mention.")
    ] = "dense,sparse",
    filters: Annotated[
        str | None, typer.Option("--filter", help='As JSON: {"field": "format", "op": "=", "value": "pdf"}')
    ] = None,
    doc_id: Annotated[str | None, typer.Option(help="Search only within this document.")] = None,
    context_chars: Annotated[
        int, typer.Option(min=0, max=4000, help="How much of a hit is shown, around its match.")
    ] = SearchRequest.model_fields["context_chars"].default,
    facet: Annotated[list[str] | None, typer.Option(help="Count the values of this field; may be repeated.")] = None,
    fusion: Annotated[
        Fusion | None, typer.Option(help="How the legs' lists become one.", show_default="as configured")
    ] = None,
    rerank: Annotated[bool, typer.Option("--rerank", help="Let a running graph's model order the candidates.")] = False,
    url: Annotated[
        str | None, typer.Option(help="Ask the graph that listens here, not an index on this machine.")
    ] = None,
    api_key: ApiKey = None,
    embedder: Annotated[
        str | None, typer.Option(help="The model that made the index; by default the config's.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole result as JSON.")] = False,
) -> None:
    """Search an index on this machine, or a running graph's, with the file, the heading, the page and the place of every hit.

    Exit status: 0 searched (with or without hits), 1 fault, 2 usage.
    """
    notes = Console(stderr=True)
    try:
        asked = _request(
            question=query,
            buckets=bucket or [],
            filters=_filter(filters) if filters else None,
            legs=[leg.strip() for leg in legs.split(",")],
            fusion=fusion,
            rerank=rerank,
            top_k=top_k,
            context_chars=context_chars,
            doc_id=doc_id,
            facets=facet or [],
        )
        if rerank and url is None:
            raise InvalidRequest("--rerank needs the models of a running graph: say where it listens, with --url")
        result = _remote(asked, url, api_key) if url else asyncio.run(_local(asked, config, index, embedder))
    except (InvalidRequest, UnknownBucket) as fault:
        _complain(notes, fault)
        raise typer.Exit(EXIT_USAGE) from None
    except AssayError as fault:
        _complain(notes, fault)
        raise typer.Exit(EXIT_FAULT) from None
    if as_json:
        typer.echo(result.model_dump_json(by_alias=True, indent=2))
        return
    for degraded in result.degraded:
        notes.print(f"{degraded.reason}; instead: {degraded.fallback}", style="yellow", markup=False, soft_wrap=True)
    _show(result, Console())


def _request(**given: Any) -> SearchRequest:
    """The shape of HTTP, so that both doors refuse the same things."""
    try:
        return SearchRequest.model_validate(given)
    except ValidationError as e:
        first = e.errors()[0]
        raise InvalidRequest(f"{first['loc'][0]}: {first['msg'].removeprefix('Value error, ')}") from None


def _filter(text: str) -> Filter:
    try:
        parsed: Filter = TypeAdapter[Filter](Filter).validate_json(text)
    except ValidationError as e:
        example = '{"field": "format", "op": "=", "value": "pdf"}'
        raise InvalidFilter(f"--filter is not a filter ({e.errors()[0]['msg']}); an example: {example}") from None
    return parsed


async def _local(
    request: SearchRequest, config: Path | None, index: str | None, embedder: str | None
) -> SearchResponse:
    from assay.hits import Search
    from assay.index.embed import SentenceEmbedder
    from assay.models import resolve_model
    from assay.retrieve import LocalRetriever

    # What a retriever logs of a leg that failed stands in its result too, which is shown; here a log is nobody's to read.
    logging.getLogger("assay.retrieve").addHandler(logging.NullHandler())
    app = serve_config.load(config).app if config else AppConfig()
    settings, _ = index_settings(config, uri=index, embedder=embedder)
    encoder = SentenceEmbedder(resolve_model(settings.embedder, Path(app.cache)))
    found = Search(LocalRetriever(settings, app.retriever, encoder), app.retriever)
    return await found(request.seen_by(None), f"req_{ULID()}")  # whoever has the files has all that is in them


def _remote(request: SearchRequest, url: str, api_key: str | None) -> SearchResponse:
    with Client(url, api_key=api_key) as client:
        return client.search(request)


def _show(result: SearchResponse, out: Console) -> None:
    def say(text: str, style: str | None = None) -> None:
        out.print(_plain(text), style=style, markup=False, highlight=False, soft_wrap=True)

    if not result.hits:
        say("Nothing found.")
        if result.explain.blocking is not None:
            say(_without_hits(result.explain.blocking, result.explain.count_without or 0))
    for number, hit in enumerate(result.hits, start=1):
        say(f"{number}. {_where(hit)}", "bold")
        say(f"   {_why(hit)}", "dim")
        text = " ".join(hit.text.split())
        say(f"   {text}")

    for name, facet in result.facets.items():
        values = [f"{v.value}{'' if v.to is None else f' to {v.to}'} ({v.count})" for v in facet.values]
        say(f"{name}: {', '.join(values) or 'no values'}")


def _without_hits(blocking: Filter, count: int) -> str:
    """One condition as it was given, so that it can be found in a long filter."""
    if len(blocking_parts(blocking)) > 1:
        return empty(blocking, count)
    return f"No passage passes {blocking.model_dump_json(by_alias=True)}; without it {there_are(count)}."


def _where(hit: SearchHit) -> str:
    page = f"page {hit.page}" if hit.page is not None else ""
    place = f"characters {hit.span[0]}-{hit.span[1]}"
    hidden = "hidden text" if hit.hidden else ""
    parts = (hit.uri, " > ".join(hit.heading), page, place, hidden)
    return ", ".join(part for part in parts if part)


def _why(hit: SearchHit) -> str:
    ranks = [f"{leg} rank {rank}" for leg, rank in sorted(hit.ranks.items())]
    cosine = [] if hit.similarity is None else [f"cosine {hit.similarity:.3f}"]
    return ", ".join([f"score {hit.score:.3f}", *ranks, *cosine])


def _plain(text: str) -> str:
    """Texts come from documents: no escape sequence of theirs may reach the terminal."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def _complain(notes: Console, fault: AssayError) -> None:
    notes.print(in_words(fault), style="red", markup=False, highlight=False, soft_wrap=True)
