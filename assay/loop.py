"""The agent loop: plan, search, rerank, grade, and round again until the evidence is enough or a bound is reached.

A plain ``while`` under a ``Budget``. It ends with exactly one ``terminated_by``, and always with the best answer or statement
that the evidence allows. Each step is in ``assay.run`` (and the ending in ``assay.ending``); this file is their order.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from assay.bound import BoundRetriever
from assay.budget import Budget
from assay.clarify import resumed
from assay.config import AppConfig
from assay.converse import Conversation, check_tools
from assay.ending import Ending
from assay.errors import AssayError
from assay.events import ErrorEvent, Event
from assay.ledger import Ledger
from assay.run import Run, Stages, chosen_mode
from assay.schemas import AskRequest, ErrorBody
from assay.types import Scope


async def answer(
    request: AskRequest, stages: Stages, config: AppConfig, request_id: str, budget: Budget | None = None
) -> AsyncGenerator[Event]:
    """Events of one question; the last is ``CompletedEvent`` or ``ErrorEvent``.

    A fault of the request itself (unknown bucket, bad filter, a budget over its bound, nothing to resume) is raised before the
    first event, so that a door can still answer with its status. Closing the iterator cancels whatever runs.
    """
    sent = request = request.within(config.loop.answer_tokens)
    plan = None
    if request.resume is not None:
        request, plan = await resumed(request, stages.answers)
    stages = replace(stages, retriever=BoundRetriever(stages.retriever, Scope(groups=request.groups)))
    ledger = Ledger(budget or Budget.of(request.budget, config.bounds(chosen_mode(request.mode, config))))
    run = Run(request, stages, config, request_id, ledger, plan)
    run.sent = sent
    started = False
    try:
        async with aclosing(_steps(run)) as events:
            async for event in events:
                started = True
                given = ledger.budget.clock()
                yield event.of(request_id)
                ledger.consumer_s += ledger.budget.clock() - given
    except AssayError as error:
        if not started:
            raise
        yield ErrorEvent(request_id=request_id, error=error_body(error, request_id))
    finally:
        await run.close()


def error_body(error: AssayError, request_id: str) -> ErrorBody:
    return ErrorBody(
        code=error.code, message=str(error), field=error.field, allowed=list(error.allowed), request_id=request_id
    )


async def _steps(run: Run) -> AsyncGenerator[Event]:
    agent = check_tools(run) if run.mode == "tools" else None
    await run.begin()
    async with aclosing(Conversation(run, agent).events() if agent else _search(run)) as events:
        async for event in events:
            yield event
    run.let_first_hop_go()
    async with aclosing(Ending(run).events()) as ending:
        async for event in ending:
            yield event


async def _search(run: Run) -> AsyncGenerator[Event]:
    yield run.status("planning")
    async for event in run.make_plan():
        yield event

    while run.plan.search and run.more_rounds():
        yield run.status("searching")
        async for event in run.search():
            yield event
        for event in await run.check_overload():
            yield event
        fresh = run.fresh
        if run.clarification is not None or run.found is None or not (fresh or run.evidence.all):
            run.why = run.why or ("nothing was found" if run.found else "the search failed")
            break
        if run.reranks:
            yield run.status("reranking")
        for event in await run.rerank():
            yield event
        if run.mode == "pipeline" or not fresh:
            run.why = "one round is all of a pipeline" if fresh else "the round found nothing that was not there"
            break
        yield run.status("grading")
        for event in await run.make_grade():
            yield event
        if run.decided():
            break
