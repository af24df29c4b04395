"""What the driver tells operators: Serve metrics, one log line per stage and question, and spans when a collector is named.

Everything is read off the events of the loop, so that no stage has telemetry code of its own.
"""

import logging
import math
from typing import Any

from ray.serve.metrics import Counter, Histogram

from assay import events as ev
from assay.config import TelemetryConfig
from assay.errors import AssayError
from assay.schemas import AskResponse
from deployments.remote import IN_FILES

logger = logging.getLogger("ray.serve")

# Of a response, what the log line of a finished question holds; never texts.
LOGGED = {"status", "terminated_by", "rounds", "usage", "timings_ms", "index_version"}

SECONDS = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 60, 120]
COUNTS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000]
SCORES = [0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95]


def adopt_logs() -> None:
    """What ``assay`` logs in this replica goes where Serve's own lines go: as JSON, with the request's id."""
    ours, serves = logging.getLogger("assay"), logging.getLogger("ray.serve")
    ours.handlers, ours.propagate = serves.handlers, False
    ours.setLevel(logging.INFO)


class Telemetry:
    """One per driver replica."""

    def __init__(self, config: TelemetryConfig) -> None:
        self._stage = Histogram(
            "assay_stage_seconds", "Wall time of a stage as the driver saw it.", SECONDS, ("stage",)
        )
        self._tokens = Counter("assay_llm_tokens", "Tokens of language models.", ("kind",))
        self._calls = Counter("assay_llm_calls", "Calls of language models.")
        self._candidates = Histogram("assay_candidates", "Hits of one retrieval.", COUNTS)
        self._scores = Histogram(
            "assay_rerank_score", "Logistic of the standardised scores of the passages kept.", SCORES
        )
        self._degraded = Counter("assay_degraded", "Fallbacks taken.", ("stage",))
        self._ends = Counter("assay_answers", "Questions by how they ended.", ("terminated_by",))
        self._provider = _provider(config.otlp_endpoint) if config.otlp_endpoint else None
        self.tracer = self._provider.get_tracer("assay") if self._provider else None

    def flush(self) -> None:
        """Sends the spans that wait; they go by themselves every few seconds."""
        if self._provider:
            self._provider.force_flush()

    def question(self, request_id: str) -> "Question":
        return Question(self, request_id)

    def observe(self, event: ev.Event) -> None:
        match event:
            case ev.ToolCallResult():
                self._candidates.observe(event.hits)
            case ev.DegradedEvent():
                self._degraded.inc(tags={"stage": event.degraded.stage})
            case ev.EvidenceEvent():
                for score in event.scores:
                    self._scores.observe(1 / (1 + math.exp(-max(-30.0, score))))  # a histogram takes no negative bounds
            case ev.CompletedEvent():
                self._completed(event.response)
            case ev.ErrorEvent():
                self.ended("failed")

    def _completed(self, response: AskResponse) -> None:
        self.ended(response.terminated_by)
        for stage, ms in response.timings_ms.items():
            self._stage.observe(ms / 1000, tags={"stage": stage})
        usage = response.usage
        if usage.llm_calls:
            self._calls.inc(usage.llm_calls)
        for kind in ("prompt", "cached", "completion"):
            if tokens := getattr(usage, f"{kind}_tokens"):
                self._tokens.inc(tokens, tags={"kind": kind})

    def ended(self, terminated_by: str) -> None:
        self._ends.inc(tags={"terminated_by": terminated_by})


class Question:
    """The telemetry of one question: feed it every event, then ``close`` it, however the question ended."""

    def __init__(self, telemetry: Telemetry, request_id: str) -> None:
        self._telemetry, self._id = telemetry, request_id
        self._last: ev.Event | None = None
        self._spans = Spans(telemetry.tracer, request_id) if telemetry.tracer else None

    def observe(self, event: ev.Event) -> None:
        self._last = event
        self._telemetry.observe(event)
        if isinstance(event, ev.DegradedEvent):
            self._log(logging.WARNING, "degraded", **event.degraded.model_dump())
        if self._spans and isinstance(event, ev.StatusEvent):
            self._spans.enter(event.state, event.round)

    def close(self, ended_by: BaseException | None = None) -> None:
        if self._spans:
            self._spans.close()
        if isinstance(ended_by, AssayError):
            self._telemetry.ended("refused")
            self._log(logging.INFO, "refused", code=ended_by.code, field=ended_by.field)
            return
        if isinstance(ended_by, Exception):
            self._telemetry.ended("failed")
            self._log(logging.ERROR, "failed", code="internal")
            return
        match self._last:
            case ev.CompletedEvent(response=response):
                self._log(logging.INFO, "answer", **response.model_dump(include=LOGGED), **IN_FILES)
            case ev.ErrorEvent(error=error):
                self._log(logging.ERROR, "failed", code=error.code)
            case _:
                self._telemetry.ended("cancelled")
                self._log(logging.INFO, "cancelled")

    def _log(self, level: int, event: str, **fields: Any) -> None:
        logger.log(level, event, extra={"question_id": self._id, **fields})


class Spans:
    """A root span for the question, and under it one for each stage from its status event to the next one."""

    def __init__(self, tracer: Any, request_id: str) -> None:
        from opentelemetry.trace import set_span_in_context

        self._tracer, self._attributes = tracer, {"request_id": request_id}
        self._root = tracer.start_span("answer", attributes=self._attributes)
        self._context = set_span_in_context(self._root)
        self._stage: Any = None

    def enter(self, stage: str, search_round: int) -> None:
        if self._stage:
            self._stage.end()
        attributes = {**self._attributes, "round": search_round}
        self._stage = self._tracer.start_span(stage, context=self._context, attributes=attributes)

    def close(self) -> None:
        if self._stage:
            self._stage.end()
        self._root.end()


def _provider(endpoint: str) -> Any:
    """A provider of our own: the process-wide one belongs to whoever embeds us."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=Resource.create({"service.name": "assay"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces")))
    return provider
