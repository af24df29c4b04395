"""What the loop finds, and whether it knows when there is nothing to find: in process, with the real retriever and model."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any

from assay import loop
from assay.calibrate import cases, grading
from assay.config import AppConfig, GradeConfig, LoopConfig, RerankerConfig, RetrieverConfig
from assay.errors import StageUnavailable
from assay.eval.answers import BALANCED
from assay.eval.compare import Estimate, compared
from assay.eval.metrics import Values
from assay.eval.questions import Place
from assay.eval.scoring import abstained
from assay.events import CompletedEvent
from assay.expand import LLMExpander
from assay.generate import ExtractGenerator
from assay.ledger import UNUSED
from assay.ports import Generator
from assay.relevance import GRADED
from assay.rerank import LLMReranker
from assay.retrieve import LocalRetriever
from assay.run import Stages
from assay.schemas import AskOptions, AskRequest, AskResponse, Include, Mode, Usage
from assay.text import query_key
from assay.types import DocumentQuery, GenerateEvent, GenerateRequest, SearchQuery
from bench.agent_parts import Parts
from bench.report import Row, at_least, at_most
from deployments.calibrate import vectors

TOP = 5
OVER_LINK = 0.03
OVER_PIPELINE = {"musique_50": 0.06}
BALANCE = 0.65
LINK, PIPELINE, AGENTIC = "one call with the link hop", "pipeline", "agentic"
_PATIENCE_S = 900.0  # a stage that is given up for the machine's sake would be measured as a worse one


class Unwritten:
    """``ports.Generator`` of nobody: what was found is all that is asked."""

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateEvent]:
        yield GenerateEvent(usage=Usage())


class Broken:
    """``ports.Generator`` that is down, so that the best passage is quoted: its named fallback."""

    def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateEvent]:
        raise StageUnavailable("There is no model in this measurement.")


class Asking:
    """The loop over one set's index."""

    def __init__(
        self, parts: Parts, name: str, config: AppConfig, writer: Generator | None = None, *, model: bool
    ) -> None:
        """``writer``: None writes what is extracted. Without a ``model`` nothing is planned or reranked."""
        self._name, self._config = name, config
        self._options = AskOptions(clarify=False, expand=model, rerank=model)
        patience = RetrieverConfig(timeout_s=600)
        self.retriever = LocalRetriever(parts.index_of(name), patience, parts.encoder)
        self._stages = Stages(
            LLMExpander(parts.known, config.expander),
            self.retriever,
            LLMReranker(parts.known, parts.tokenizer, config.reranker),
            writer or ExtractGenerator(parts.known, parts.encoder, parts.tokenizer, config.generator),
        )

    async def ask(self, row: dict[str, Any], mode: Mode) -> AskResponse:
        """Raises ``RuntimeError`` where a stage fell back: that figure would not be the configuration's."""
        asked = {name: row[name] for name in ("question", "filters") if name in row}
        include: list[Include] = ["evidence", "tool_calls"]
        request = AskRequest(**asked, mode=mode, include=include, options=self._options)
        async for event in loop.answer(request, self._stages, self._config, "bench"):
            if isinstance(event, CompletedEvent):
                bad = [d for d in event.response.degraded if d.stage in ("retriever", "reranker")]
                if bad:
                    raise RuntimeError(f"{self._name}: '{row['question']}' was degraded: {bad[0].reason}")
                return event.response
        raise RuntimeError(f"{self._name}: '{row['question']}' ended in an error")


def patient(reranker: RerankerConfig) -> AppConfig:
    """The defaults, with the reranker and grader that were fitted, and time for a slow machine."""
    config = AppConfig()
    return config.model_copy(
        update={
            "loop": LoopConfig(deadline_s=_PATIENCE_S),
            "expander": config.expander.model_copy(update={"timeout_s": 600.0}),
            "retriever": config.retriever.model_copy(update={"timeout_s": 600.0}),
            "reranker": reranker.model_copy(update={"timeout_s": 600.0}),
            "generator": config.generator.model_copy(update={"timeout_s": 600.0}),
        }
    )


async def recall(parts: Parts, part: str = "recall", *, model: bool = True) -> list[Row]:
    """What the best passages of the final evidence hold of what a question needs, over two sets of several steps."""
    rows: list[Row] = []
    progress = Progress()
    for name in ("musique_50", "hotpotqa_100"):
        asking = Asking(parts, name, patient(parts.reranker), Unwritten(), model=model)
        values: dict[str, Values] = {how: {"R": {}} for how in (LINK, PIPELINE, AGENTIC)}
        chosen = parts.set(name).rows[: 8 if parts.quick else parts.limit]
        for number, row in enumerate(chosen, start=1):
            places = [Place.model_validate(hop) for hop in row["evidence"]]
            one = await asking.retriever.search(SearchQuery((row["question"],), link_hop=True, top_k=TOP))
            values[LINK]["R"][row["id"]] = _share(places, [h.chunk.uri for h in one.hits])
            for how in (PIPELINE, AGENTIC):
                response = await asking.ask(row, how)  # type: ignore[arg-type]
                best = sorted(response.evidence or [], key=lambda e: e.rank)[:TOP]
                values[how]["R"][row["id"]] = _share(places, [e.uri for e in best])
                if how == AGENTIC:
                    progress.add(response)
            parts.notes.print(f"{name}: {number} of {len(chosen)}", highlight=False)
        rows += _recall_rows(f"{part} | {name}", values, OVER_PIPELINE.get(name))
    return [*rows, *progress.rows(part)]


def _share(places: Sequence[Place], uris: Sequence[str]) -> float:
    return sum(place.uri in uris for place in places) / len(places)


def _recall_rows(start: str, values: dict[str, Values], over_pipeline: float | None) -> list[Row]:
    rows = []
    means = compared(values, LINK).estimates
    for how, of in means.items():
        rows.append(Row(f"{start} | {how}: R@{TOP} of the final evidence", of["R"].mean, f"of {len(values[how]['R'])}"))
    for base, goal in ((LINK, OVER_LINK), (PIPELINE, over_pipeline)):
        apart = compared({how: values[how] for how in (base, AGENTIC)}, base).against[AGENTIC]["R"]
        said = f"{start} | agentic over {base} {_interval(apart.difference)}"
        gained = apart.difference.mean
        rows.append(at_least(said, gained, "R@5", goal) if goal else Row(said, gained, "R@5"))
    return rows


def _interval(of: Estimate) -> str:
    return f"[{of.low:+.3f} to {of.high:+.3f}]"


@dataclass(slots=True)
class Progress:
    """Whether every round asks something new and finds something new."""

    rounds: int = 0
    repeated: int = 0
    empty: int = 0

    def add(self, response: AskResponse) -> None:
        added = {e.round for e in response.evidence or []}
        self.rounds += response.rounds
        self.empty += sum(number not in added for number in range(1, response.rounds + 1))
        seen: set[str] = set()
        for call in (c for c in response.tool_calls or [] if c.outcome != UNUSED):
            keys = {query_key(query) for query in call.arguments["queries"]}
            self.repeated += bool(keys) and keys <= seen
            seen |= keys

    def rows(self, part: str) -> list[Row]:
        of = f"of {self.rounds} rounds"
        return [
            at_most(f"{part} | searches that repeat a query", self.repeated, of, 0),
            at_most(f"{part} | rounds that add nothing", self.empty, of, 0),
        ]


async def abstain(parts: Parts, part: str = "abstain", *, model: bool = True) -> list[Row]:
    """Questions with an answer in their document, and without one; what is fitted is fitted on other sets. Each is asked as
    shipped and with the fitted bound; what the first has asked the engine the second takes from ``parts.known``."""
    rows: list[Row] = []
    (fitted, bound), quotes = await _fitted_elsewhere(parts, model), Quotes()
    shipped = GradeConfig().min_holds
    bounds = {f"min_holds {shipped:g}, as shipped": shipped, f"min_holds {bound:.2f}, fitted elsewhere": bound}
    for name in ("squad2_250", "cuad_clauses"):
        every = parts.set(name).rows
        chosen = every[:: max(1, len(every) // 12)] if parts.quick else every[: parts.limit]
        asking = {bound: _asking(parts, name, fitted, bound, model) for bound in bounds.values()}
        right: dict[float, dict[bool, list[bool]]] = {bound: {True: [], False: []} for bound in asking}
        for number, row in enumerate(chosen, start=1):
            there = bool(row.get("answerable", True))
            for bound, each in asking.items():
                response = await each.ask(row, "agentic")
                right[bound][there].append(abstained({"status": response.status}) != there)
                if bound == shipped:
                    await quotes.check(response, each.retriever)
            parts.notes.print(f"{name}: {number} of {len(chosen)}", highlight=False)
        for said, bound in bounds.items():
            rows += _abstain_rows(f"{part} | {name}, {said}", right[bound])
    return [
        *rows,
        at_most(f"{part} | citations that do not contain their quote", quotes.wrong, f"of {quotes.checked}", 0),
    ]


def _asking(parts: Parts, name: str, fitted: GradeConfig, bound: float, model: bool) -> Asking:
    grade = fitted.model_copy(update={"min_holds": bound})
    config = patient(parts.reranker.model_copy(update={"grade": grade}))
    return Asking(parts, name, config, None if model else Broken(), model=model)


def _abstain_rows(start: str, right: dict[bool, list[bool]]) -> list[Row]:
    answered, refused = (sum(side) / len(side) for side in (right[True], right[False]))
    count = len(right[True]) + len(right[False])
    return [
        at_least(f"{start} | {BALANCED}", (answered + refused) / 2, f"of {count}", BALANCE),
        Row(f"{start} |   answerable, and answered", answered, f"of {len(right[True])}"),
        Row(f"{start} |   not answerable, and refused", refused, f"of {len(right[False])}"),
    ]


@dataclass(slots=True)
class Quotes:
    """Whether what is cited stands where the citation says."""

    checked: int = 0
    wrong: int = 0

    async def check(self, response: AskResponse, retriever: LocalRetriever) -> None:
        for c in response.citations:
            text = (await retriever.document_lookup(DocumentQuery(c.doc_id, span=c.span, max_chars=100_000))).text
            self.checked, self.wrong = self.checked + 1, self.wrong + (c.quote not in text)


async def _fitted_elsewhere(parts: Parts, model: bool) -> tuple[GradeConfig, float]:
    """The grader fitted as ``calibrate`` does, without the sets that are asked here, and the bound of ``holds`` that tells both
    kinds apart best there."""
    labelled = [q for q in cases.read(parts.data) if q.task in ("hotpotqa", "musique")]
    found = await grading.cases(labelled, parts.data, lambda texts: vectors(texts, parts.encoder, parts.cache))
    config = RerankerConfig(candidates=GRADED)
    measured = await grading.samples(found, LLMReranker(parts.known, parts.tokenizer, config) if model else None)
    grade, figures = grading.fitted(found, measured, GradeConfig().min_answer, model=model)
    return grade, next(f.value for f in figures if f.name == grading.BALANCED)
