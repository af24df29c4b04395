"""The real ingress before a driver that answers each question with itself after a moment, and includes what it is asked to:
real Ray and Serve, no model.
"""

import asyncio
import os
from typing import Any

from ray import serve
from ray.serve import Application

from assay.config import IngressConfig
from assay.errors import Overloaded, UnknownBucket
from assay.schemas import (
    Answer,
    AnswerState,
    AskBudget,
    AskRequest,
    AskResponse,
    EvidenceRef,
    PlanState,
    Readiness,
    ToolCall,
    TraceStep,
    Usage,
)
from deployments.ingress import Ingress
from deployments.remote import Reply, reply

SECONDS = 0.4


class Answering:
    def __init__(self) -> None:
        self._running = 0
        self._refused = False

    async def ask(self, request: AskRequest, request_id: str) -> Reply[AskResponse]:
        return await reply(self._ask(request, request_id))

    async def _ask(self, request: AskRequest, request_id: str) -> AskResponse:
        if request.buckets:
            raise UnknownBucket("there is no such bucket", "buckets", ("docs",))
        if not self._refused:  # the first caller finds a full queue
            self._refused = True
            raise Overloaded("full")
        self._running += 1
        try:
            await asyncio.sleep(SECONDS)
            text = f"{request.question} [{self._running} at once]"
        finally:
            self._running -= 1
        if "nothing" in request.question:
            return AskResponse(
                id=request_id, request_id=request_id, status="no_evidence", terminated_by="no_evidence", answer=None
            )
        found = ("first.md", "second.md") if request.mode == "agentic" else ("first.md",)
        plan = PlanState(query=request.question)
        all_of_it: dict[str, Any] = {
            "evidence": [_evidence(rank, uri) for rank, uri in enumerate(found, start=1)],
            "trace": [TraceStep(step=1, stage="retrieve", summary=f"{len(found)} hits")],
            "tool_calls": [ToolCall(tool="search_text", arguments={}, hits=len(found), duration_ms=1.0, outcome="ok")],
            "state": AnswerState(mode=request.mode, plan=plan, bounds=AskBudget(), seconds=SECONDS),
        }
        return AskResponse(
            **{name: part for name, part in all_of_it.items() if name in request.include},
            id=request_id,
            request_id=request_id,
            status="answered",
            terminated_by="answered",
            answer=Answer(text=text, style="extract"),
            usage=Usage(llm_calls=1),
        )

    async def readiness(self) -> Reply[Readiness]:
        return Reply(Readiness(status="ready", stages={"driver": "ready"}), 0.0)


def _evidence(rank: int, uri: str) -> EvidenceRef:
    place = {
        "slot": f"E{rank}",
        "chunk_id": rank,
        "doc_id": uri,
        "title": uri,
        "uri": uri,
        "rank": rank,
        "span": (0, 9),
    }
    return EvidenceRef.model_validate({**place, "score": 1.0, "sources": ["dense"], "round": rank})


def build_app(args: dict[str, Any]) -> Application:
    options = {"num_cpus": max(2, os.cpu_count() or 2) - 0.5}  # a batch has less than one beside the real engine, too
    driver: Any = serve.deployment(Answering, ray_actor_options=options, max_ongoing_requests=64).bind()
    return Ingress.bind(IngressConfig(), driver)  # type: ignore[attr-defined]
