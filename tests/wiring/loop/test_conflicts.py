"""Documents that disagree: in every style and mode both sides are cited, and the newer one is named where it is known."""

from typing import Any

import pytest

from assay.config import LoopConfig
from assay.errors import StageUnavailable
from assay.generate import WritingGenerator
from assay.schemas import AskResponse, Conflict
from assay.statements import disagree
from assay.types import DocumentInfo, DocumentQuery, Draft, GenerateEvent, GenerateRequest
from tests.fakes import ListRetriever, WordTokenizer, chunk
from tests.unit.test_conflicts import DAYS, NEW, OLD
from tests.wiring.loop.test_converse import Table
from tests.wiring.loop.test_loop import ENOUGH, Bench

pytestmark = pytest.mark.anyio

POLICIES = (chunk(1, OLD, "Refunds"), chunk(2, NEW, "Returns"), chunk(3, "The Moon is far away from here.", "Moon"))


class Dated(ListRetriever):
    """Documents with the metadata that the test gives them."""

    metadata: dict[str, dict[str, Any]] = {}

    async def get_document_metadata(self, query: DocumentQuery) -> DocumentInfo:
        assert query.filters is not None, "the request's filter binds this too"
        held = self.metadata.get(query.doc_id)
        if held is None:
            raise StageUnavailable("the index is away")
        return DocumentInfo(query.doc_id, "docs", "", "", "md", 1, 1, "2025-01-01T00:00:00Z", held)


def bench_of(**metadata: dict[str, Any]) -> Bench:
    bench = Bench(ENOUGH, chunks=POLICIES)
    bench.retriever = Dated(*POLICIES)
    bench.retriever.metadata = {f"doc_{name}": held for name, held in metadata.items()}
    return bench


FILTER = {"field": "page", "op": "<", "value": 9}


def both_sides(response: AskResponse) -> Conflict:
    """The one conflict that is told; each side is cited by the words that it stands in."""
    (conflict,) = response.conflicts
    for side in conflict.sides:
        assert any(c.number == side.number and c.quote == side.quote for c in response.citations)
    assert response.answer is not None and disagree(conflict) in response.answer.text
    return conflict


async def test_both_sides_are_cited_and_the_newer_is_named() -> None:
    bench = bench_of(refunds={"date": "2021-01-01T00:00:00Z"}, returns={"date": "2024-03-01T00:00:00Z"})
    response = await bench.ask(DAYS, filters=FILTER, include=["tool_calls", "trace"])
    conflict = both_sides(response)
    newest = {side.number: side for side in conflict.sides}[conflict.newest or 0]
    assert (newest.value, newest.date) == ("thirty (30) days", "2024-03-01")
    assert response.tool_calls is not None and response.trace is not None
    assert [c.tool for c in response.tool_calls].count("get_document_metadata") == 2
    assert "conflict" in [step.stage for step in response.trace] and response.degraded == []


@pytest.mark.parametrize("held", [{}, {"returns": {"date": "2024-03-01"}}, {"refunds": {"x": 1}, "returns": {"x": 2}}])
async def test_without_dates_none_is_the_newer(held: Any) -> None:
    response = await bench_of(**held).ask(DAYS, filters=FILTER)
    assert both_sides(response).newest is None
    assert [d.stage for d in response.degraded] == ([] if len(held) == 2 else ["retriever"])


async def test_an_answer_of_one_sentence_still_cites_the_other_side() -> None:
    bench = bench_of()
    bench.config = bench.config.model_copy(
        update={"generator": bench.config.generator.model_copy(update={"sentences": 1})}
    )
    bench.generator._config = bench.config.generator
    conflict = both_sides(await bench.ask(DAYS, filters=FILTER, budget=None))
    assert len(conflict.sides) == 2


@pytest.mark.parametrize(
    ("style", "said"),
    [
        ("prose", "Customers have 14 days to ask for a refund [E1]."),
        ("prose", "Customers have 14 days to ask for a refund [E1]. Customers have 30 days to ask for a refund [E2]."),
        ("list", "- Customers have 14 days to ask for a refund [E1]\n"),
        ("table", "| Customers | Days |\n| refund | 14 | [E1] |\n"),
    ],
)
async def test_a_model_that_tells_one_side_is_completed(style: Any, said: str) -> None:
    bench = Bench(ENOUGH, chunks=POLICIES)
    bench.generator = WritingGenerator(bench.llm, WordTokenizer(), bench.config.generator)
    bench.llm.enqueue(said)
    response = await bench.ask(DAYS, style=style, options={"rerank": False})
    assert {side.value for side in both_sides(response).sides} == {"14 days", "thirty (30) days"}
    assert response.answer is not None
    if style == "table":
        assert "|\n\n" in response.answer.text


async def test_the_model_of_a_conversation_is_completed_too() -> None:
    response = await Table("Customers have 14 days to ask for a refund [E1].", chunks=POLICIES).ask(DAYS)
    assert len(both_sides(response).sides) == 2


async def test_what_the_answer_does_not_rest_on_is_not_told() -> None:
    class Other:
        async def generate(self, request: GenerateRequest) -> Any:

            (moon,) = (e for e in request.evidence if e.hit.chunk.title == "Moon")
            yield GenerateEvent(draft=Draft(moon.hit.chunk.text, (moon.slot,), (0, len(moon.hit.chunk.text))))

    bench = Bench(ENOUGH, chunks=(*POLICIES[:2], chunk(3, "A refund for days is a fine thing to have.", "Moon")))
    bench.generator = Other()
    response = await bench.ask(DAYS)
    assert response.conflicts == [] and response.status == "answered"


async def test_the_budget_of_calls_holds_for_dates() -> None:
    bench = bench_of(refunds={"date": "2021-01-01"}, returns={"date": "2024-03-01"})
    bench.config = bench.config.model_copy(update={"loop": LoopConfig(mode="agentic", tool_calls=2)})
    response = await bench.ask(DAYS, filters=FILTER, include=["tool_calls"])
    assert both_sides(response).newest is None and response.tool_calls is not None and len(response.tool_calls) <= 2


async def test_a_fault_in_the_look_for_conflicts_leaves_the_answer_and_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.conflicts.values_of", lambda sentence: {}[sentence])
    response = await bench_of().ask(DAYS)
    assert response.status == "answered" and response.citations and response.conflicts == []
    assert [(d.stage, d.reason) for d in response.degraded] == [("conflicts", "looking for conflicts failed: KeyError")]
