"""Spans as a collector receives them, over HTTP, and what is said of a question however it ended."""

import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from assay import events as ev
from assay.config import TelemetryConfig
from assay.errors import UnknownBucket
from assay.schemas import AskResponse
from deployments.telemetry import Telemetry


class Collector(HTTPServer):
    """An OTLP collector that keeps what it is sent."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.spans: list[Span] = []


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:  # the name that http.server calls
        sent = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["content-length"])))
        for resource in sent.resource_spans:
            for scope in resource.scope_spans:
                self.server.spans += scope.spans
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


DONE = AskResponse(id="ans_1", request_id="req_1", status="answered", terminated_by="answered", answer=None)


def test_a_question_is_one_trace_with_a_span_for_each_stage(collector: Collector) -> None:
    telemetry = Telemetry(TelemetryConfig(otlp_endpoint=f"http://127.0.0.1:{collector.server_port}"))
    question = telemetry.question("req_1")
    question.observe(ev.StatusEvent(state="planning"))
    question.observe(ev.StatusEvent(state="searching", round=1))
    question.observe(ev.CompletedEvent(response=DONE))
    question.close()
    telemetry.flush()
    spans = {span.name: span for span in collector.spans}
    assert set(spans) == {"answer", "planning", "searching"}
    root = spans["answer"]
    assert {spans[name].parent_span_id for name in ("planning", "searching")} == {root.span_id}
    assert {span.trace_id for span in spans.values()} == {root.trace_id}
    assert {a.key: a.value.string_value for a in root.attributes}["request_id"] == "req_1"
    assert spans["planning"].end_time_unix_nano <= spans["searching"].start_time_unix_nano


@pytest.mark.parametrize(
    ("event", "ended_by", "said"),
    [
        (ev.CompletedEvent(response=DONE), None, "answer"),
        (None, UnknownBucket("no bucket 'x'", "buckets"), "refused"),
        (None, ZeroDivisionError(), "failed"),
        (ev.StatusEvent(state="planning"), GeneratorExit(), "cancelled"),
    ],
)
def test_every_end_is_named_in_the_log(
    event: ev.Event | None, ended_by: BaseException | None, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    question = Telemetry(TelemetryConfig()).question("req_1")
    if event is not None:
        question.observe(event)
    with caplog.at_level(logging.INFO, "ray.serve"):
        question.close(ended_by)
    (record,) = [r for r in caplog.records if getattr(r, "question_id", "") == "req_1"]
    assert record.getMessage() == said
