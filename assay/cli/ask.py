"""``ask``: one question to a running graph. The answer and its citations go to stdout, all that happens meanwhile to
stderr."""

import re
from typing import Annotated

import typer
from pydantic import ValidationError
from rich.console import Console

from assay import events as ev
from assay.cli.settings import ApiKey
from assay.client import DEFAULT_URL, Client
from assay.errors import AssayError
from assay.schemas import AskRequest, AskResponse, Citation, Mode
from assay.statements import describe

EXIT_FAULT, EXIT_NOT_ANSWERED, EXIT_INTERRUPTED = 1, 3, 130

# Texts come from documents: no escape sequence of theirs may reach the terminal.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def ask(
    question: Annotated[str, typer.Argument(help="The question, in quotes.")],
    url: Annotated[str, typer.Option(help="Where the graph listens.", envvar="ASSAY_URL")] = DEFAULT_URL,
    mode: Annotated[Mode, typer.Option(help="auto is what the server's config says.")] = "auto",
    bucket: Annotated[list[str] | None, typer.Option(help="Search only here; may be repeated.")] = None,
    resume: Annotated[
        str | None, typer.Option(help="The question is the reply to what was asked back under this.")
    ] = None,
    api_key: ApiKey = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole response as JSON.")] = False,
) -> None:
    """Ask a running graph, and watch it plan, search, weigh and answer.

    Exit status: 0 answered, 1 fault, 3 not answered, 130 interrupted.
    """
    try:
        given = {"resume": resume} if resume else {"mode": mode}  # of a resumed question the mode stands
        request = AskRequest.model_validate({"question": question, "buckets": bucket or [], **given})
        response = _as_json(url, api_key, request) if as_json else _as_text(url, api_key, request)
    except ValidationError as error:
        first = error.errors()[0]
        _complain(f"{first['loc'][0]}: {first['msg'].removeprefix('Value error, ')}")
        raise typer.Exit(2) from None
    except AssayError as fault:
        _complain(str(fault), *fault.__notes__ if hasattr(fault, "__notes__") else ())
        raise typer.Exit(EXIT_FAULT) from None
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if response.status == "failed":
        raise typer.Exit(EXIT_FAULT)
    if response.status not in ("answered", "partial"):
        raise typer.Exit(EXIT_NOT_ANSWERED)


def _as_json(url: str, api_key: str | None, request: AskRequest) -> AskResponse:
    with Client(url, api_key=api_key) as client:
        response = client.ask(request)
    typer.echo(response.model_dump_json(by_alias=True, indent=2))
    return response


def _as_text(url: str, api_key: str | None, request: AskRequest) -> AskResponse:
    screen = Screen(Console(), Console(stderr=True))
    response: AskResponse | None = None
    with Client(url, api_key=api_key) as client:
        for event in client.stream(request):
            screen.show(event)
            if isinstance(event, ev.CompletedEvent):
                response = event.response
    assert response is not None, "the client raises when a stream is cut off"
    screen.finish(response)
    return response


def _complain(*lines: str) -> None:
    console = Console(stderr=True)
    for line in lines:
        console.print(clean(line), style="red", markup=False, highlight=False, soft_wrap=True)


def clean(text: str) -> str:
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


class Screen:
    """Shows events as they come. Where a console is no terminal, the same text comes without colours."""

    def __init__(self, out: Console, notes: Console) -> None:
        self._out, self._notes = out, notes
        self._begun: list[ev.ToolCallStart] = []
        self._answering = False

    def show(self, event: ev.Event) -> None:
        match event:
            case ev.PlanEvent():
                self._note("plan", _plan(event))
            case ev.ToolCallStart():
                self._begun.append(event)
            case ev.ToolCallResult():
                took = f"{event.hits} hits in {event.duration_ms:.0f} ms"
                outcome = "" if event.outcome == "ok" else f", {event.outcome}"
                name, asked = self._asked(event.tool)
                self._note(name, f"{asked}: {took}{outcome}")
            case ev.EvidenceEvent() if event.found:
                self._note("found", f"at first {', '.join(dict.fromkeys(event.found))}")
            case ev.EvidenceEvent() if event.added:
                self._note("evidence", f"{', '.join(event.added)} from {', '.join(dict.fromkeys(event.titles))}")
            case ev.GradeEvent():
                self._note("grade", _grade(event))
            case ev.AnswerEvent():
                self._answer(event.delta)
            case _:
                pass

    def _asked(self, tool: str) -> tuple[str, str]:
        """What a result is of: calls of one tool that run side by side end in the order in which they began."""
        at = next(i for i, begun in enumerate(self._begun) if begun.tool == tool)
        arguments = self._begun.pop(at).arguments
        if "queries" in arguments:
            return "search", " | ".join(map(str, arguments["queries"]))
        return "tool", f"{tool} {arguments.get('query') or arguments.get('doc_id') or ''}".rstrip()

    def finish(self, response: AskResponse) -> None:
        if response.answer and not self._answering:
            self._answer(response.answer.text)
        self._line("" if self._answering else None)
        if response.clarification:
            self._line(response.clarification.message)
            for choice in response.clarification.choices:
                self._line(f"  - {choice.label}{'' if choice.count is None else f' ({choice.count})'}")
            if response.clarification.resume:
                self._note("resume", f"reply with --resume {response.clarification.resume}")
        for citation in response.citations:
            self._cite(citation)
        self._footer(response)

    def _answer(self, delta: str) -> None:
        if not self._answering:
            self._answering = True
            self._notes.print()
        self._out.print(clean(delta), end="", markup=False, highlight=False, soft_wrap=True)

    def _cite(self, citation: Citation) -> None:
        heading = " > ".join(citation.heading)
        page = f"page {citation.page}" if citation.page is not None else ""
        place = f"characters {citation.span[0]}-{citation.span[1]}"
        hidden = "hidden text" if citation.hidden else ""
        where = ", ".join(part for part in (citation.uri, heading, page, place, hidden) if part)
        self._line("")
        self._line(f"[{citation.number}] {where}", "bold")
        self._line(f"    {' '.join(citation.quote.split())}")

    def _footer(self, response: AskResponse) -> None:
        self._notes.print()
        for degraded in response.degraded:
            self._note("degraded", f"{degraded.stage}: {degraded.reason}; instead: {degraded.fallback}", "yellow")
        stages = ", ".join(f"{stage} {_duration(took)}" for stage, took in response.timings_ms.items())
        ended = f"{response.terminated_by} after {response.rounds} round{'' if response.rounds == 1 else 's'}"
        self._note("ended", f"{ended}; {stages}" if stages else ended)

    def _note(self, name: str, text: str, style: str = "dim") -> None:
        self._notes.print(f"{name:<10} {clean(text)}", style=style, markup=False, highlight=False, soft_wrap=True)

    def _line(self, text: str | None, style: str | None = None) -> None:
        if text is not None:
            self._out.print(clean(text), style=style, markup=False, highlight=False, soft_wrap=True)


def _duration(ms: float) -> str:
    return f"{ms:.0f} ms" if ms < 1000 else f"{ms / 1000:.1f} s"


def _plan(plan: ev.PlanEvent) -> str:
    parts = [f"{plan.mode}: {plan.query}"]
    parts += [f"also as: {', '.join(plan.variants)}"] if plan.variants else []
    parts += [f"in parts: {', '.join(plan.sub_questions)}"] if plan.sub_questions else []
    parts += [f"in {', '.join(plan.buckets)}"] if plan.buckets else []
    parts += [f"only where {describe(plan.filters)}"] if plan.filters else []
    parts += [] if plan.search else [f"no search: {plan.reason}"]
    return "; ".join(parts)


def _grade(grade: ev.GradeEvent) -> str:
    parts = [f"enough {grade.p_enough:.2f}, more {grade.p_more:.2f}, clarify {grade.p_clarify:.2f}"]
    parts += [f"missing: {', '.join(grade.missing)}"] if grade.missing else []
    parts += [f"next: {' | '.join([grade.follow_up, *grade.beside])}"] if grade.follow_up else []
    return "; ".join(parts)
