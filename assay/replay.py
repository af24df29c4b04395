"""What differs between two answers to the same request: in their plans, searches, evidence, citations and words."""

import json
from collections import Counter
from dataclasses import dataclass

from assay.ledger import UNUSED
from assay.schemas import AskResponse, Shape


@dataclass(frozen=True, slots=True)
class Difference:
    """Of one kind of fact, what only the one has and what only the other; nothing in both where only the order is another."""

    what: str
    then: tuple[str, ...]
    now: tuple[str, ...]


def differences(then: AskResponse, now: AskResponse) -> list[Difference]:
    """In the order in which things happen. Times, tokens and ids are no differences."""
    before, after = facts(then), facts(now)
    found: list[Difference] = []
    for what, old in before.items():
        if old != (new := after[what]):
            gone, come = Counter(old) - Counter(new), Counter(new) - Counter(old)
            found.append(Difference(what, tuple(gone.elements()), tuple(come.elements())))
    return found


def facts(response: AskResponse) -> dict[str, list[str]]:
    """What an answer was made of, each fact as a line."""
    state, answer = response.state, response.answer
    plan = state.plan if state else None
    return {
        "mode": [state.mode] if state else [],
        "plan": _fields(plan) if plan else [],
        "searches": [
            f"{call.tool} {_text(call.arguments)}{f' where {_text(call.filters)}' if call.filters else ''}: "
            f"{call.hits} hits, {call.outcome}"
            for call in response.tool_calls or []
            if call.outcome != UNUSED  # how far it came hangs on the moment when it was let go
        ],
        "rounds": [str(response.rounds)],
        "evidence": [f"{e.slot}: passage {e.chunk_id} of '{e.title}'" for e in response.evidence or []],
        "degraded": [f"{d.stage}: {d.fallback}" for d in response.degraded],
        "ended": [f"{response.status}, {response.terminated_by}"],
        "clarification": [response.clarification.message] if response.clarification else [],
        "citations": [
            f"[{c.number}] {c.doc_id} {c.span[0]}-{c.span[1]}: {' '.join(c.quote.split())}" for c in response.citations
        ],
        "answer": answer.text.splitlines() if answer else [],
    }


def _fields(shape: Shape) -> list[str]:
    told = shape.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return [f"{name}: {_text(value)}" for name, value in told.items()]


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    plain = value.model_dump(mode="json", by_alias=True) if isinstance(value, Shape) else value
    return json.dumps(plain, ensure_ascii=False, sort_keys=True)
