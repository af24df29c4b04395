"""Whether every plan that the model writes is whole JSON of the schema that was sent for it, whatever becomes of it then."""

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NoReturn

from jsonschema import Draft202012Validator

from assay.config import ExpanderConfig
from assay.expand import LLMExpander
from assay.ports import LLM, Tokenizer
from assay.schemas import STEPS
from assay.types import BucketInfo, Completion, CompletionRequest, FieldInfo, PlanRequest

AT_ONCE = 16
WIDE_TOKENS = 1_024  # of a plan that this model fills, in minutes
VALID = "valid"
# As a catalogue describes CUAD's contracts and invoice2data's bills.
BUCKETS = (
    BucketInfo(
        "contracts",
        60,
        2600,
        "Agreements between companies, as they were filed",
        (
            FieldInfo("type", "text", True, "What is agreed on", 60, ("Distributor", "Franchise", "Hosting", "Supply")),
            FieldInfo("law", "text", False, "The state or country whose law governs", 55),
            FieldInfo("signed", "date", False, "", 52),
            FieldInfo("parties", "list", False, "Companies that signed", 60),
        ),
    ),
    BucketInfo(
        "invoices",
        6,
        12,
        "Bills that we were sent",
        (
            FieldInfo("issuer", "text", True, "Who wants the money", 6),
            FieldInfo("amount", "number", True, "", 6),
            FieldInfo("date", "date", False, "", 6),
            FieldInfo("currency", "text", False, "", 6, ("EUR", "INR", "USD")),
            FieldInfo("paid", "boolean", False, "", 4),
        ),
    ),
)


class Judged:
    """``ports.LLM`` that judges what is written by it; ``faults`` are those of each request, "" where there is none."""

    def __init__(self, llm: LLM) -> None:
        self.stream, self.score, self._llm = llm.stream, llm.score, llm
        self.faults: defaultdict[str, list[str]] = defaultdict(list)

    async def complete(self, request: CompletionRequest) -> Completion:
        completion = await self._llm.complete(request)
        self.faults[request.request_id].append(fault_of(request.json_schema, completion))
        return completion


def fault_of(schema: str | None, completion: Completion) -> str:
    """Why this is no whole JSON of its schema; "" where it is."""
    if schema is None:
        return "asked for without a schema"
    if completion.finish_reason != "stop":
        return "cut off"
    try:
        value = json.loads(completion.text, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return "not JSON"
    return "" if Draft202012Validator(json.loads(schema)).is_valid(value) else "not of its schema"


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


async def planned(llm: LLM, tokenizer: Tokenizer, questions: Sequence[str], *, wide: bool) -> Counter[str]:
    """How many plans are valid, and how many have which fault first. ``wide``: the model decides all that it can, over two
    buckets with fields; else it varies the question, as the laptop's does by default."""
    config = ExpanderConfig(skip_simple=False, steps=STEPS if wide else None, max_tokens=WIDE_TOKENS if wide else None)
    judged, gate = Judged(llm), asyncio.Semaphore(AT_ONCE)
    expander = LLMExpander(judged, config, tokenizer=tokenizer)

    async def one(number: int, question: str) -> str:
        id = f"valid-plan-{'wide' if wide else 'default'}-{number}"
        async with gate:
            plan = await expander.plan(PlanRequest(question, buckets=BUCKETS if wide else (), request_id=id))
        faults = judged.faults[id] or ["not asked for"]
        return next(filter(None, faults), None) or plan.fault or VALID

    return Counter(await asyncio.gather(*(one(number, question) for number, question in enumerate(questions))))
