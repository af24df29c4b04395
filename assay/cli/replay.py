"""``replay``: a kept answer's question once more, on the same index, and what differs."""

import json
from dataclasses import asdict
from typing import Annotated, get_args

import typer

from assay.cli.ask import clean
from assay.cli.settings import ApiKey
from assay.client import DEFAULT_URL, Client
from assay.errors import AssayError
from assay.replay import Difference, differences
from assay.schemas import AnswerRecord, AskResponse, Include

EXIT_FAULT, EXIT_GONE, EXIT_DIFFERS, EXIT_INTERRUPTED = 1, 3, 4, 130


def replay(
    answer_id: Annotated[str, typer.Argument(metavar="ID", help="The answer's id, as in `ans_01JB...`.")],
    url: Annotated[str, typer.Option(help="Where the graph listens.", envvar="ASSAY_URL")] = DEFAULT_URL,
    api_key: ApiKey = None,
    anyway: Annotated[bool, typer.Option("--anyway", help="Also where the index is another one by now.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print both responses and the differences as JSON.")] = False,
) -> None:
    """Ask a kept answer's question again, under the same request and index, and show what differs.

    Exit status: 0 the same, 1 fault (also: no such answer), 3 its index is gone, 4 something differs, 130 interrupted.
    """
    try:
        with Client(url, api_key=api_key) as client:
            record = client.recall(answer_id)
            if (gone := _gone(record.response.index_version, client.ready().index_version)) and not anyway:
                typer.echo(f"{gone} --anyway asks the index of now.", err=True)
                raise typer.Exit(EXIT_GONE)
            now = client.ask(record.request.model_copy(update={"include": list(get_args(Include)), "stream": False}))
    except AssayError as fault:
        typer.echo(clean(str(fault)), err=True)
        raise typer.Exit(EXIT_FAULT) from None
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if (gone := _gone(record.response.index_version, now.index_version)) and not anyway:
        typer.echo(f"{gone} It changed while the question ran.", err=True)
        raise typer.Exit(EXIT_GONE)
    found = differences(record.response, now)
    _as_json(record, now, found) if as_json else _as_text(record, now, found)
    if found:
        raise typer.Exit(EXIT_DIFFERS)


def _gone(then: str | None, now: str | None) -> str | None:
    """An answer that came without a search is of no index."""
    if then is None or then == now:
        return None
    return f"The answer was made on index {then}, which is gone: {now or 'none'} is in force."


def _as_json(record: AnswerRecord, now: AskResponse, found: list[Difference]) -> None:
    then = record.response.model_dump(mode="json", by_alias=True)
    told = {"then": then, "now": now.model_dump(mode="json", by_alias=True), "differences": list(map(asdict, found))}
    typer.echo(json.dumps(told, ensure_ascii=False, indent=2))


def _as_text(record: AnswerRecord, now: AskResponse, found: list[Difference]) -> None:
    typer.echo(clean(f"{record.request.question}\nthen {record.created_at}: {record.response.id}; now: {now.id}"))
    for difference in found:
        typer.echo(f"{difference.what}{'' if difference.then or difference.now else ': in another order'}")
        for sign, lines in (("-", difference.then), ("+", difference.now)):
            for line in lines:
                typer.echo(clean(f"  {sign} {line}"))
    if not found:
        typer.echo("nothing differs")
