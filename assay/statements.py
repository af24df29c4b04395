"""What is said to a person when there is no answer: only measured facts, and what they can change."""

from collections.abc import Mapping, Sequence

from assay.schemas import And, Conflict, Filter, Not, Predicate, TerminatedBy
from assay.types import Explain, Scope


def describe(filters: Filter) -> str:
    """A filter in words."""
    if isinstance(filters, Predicate):
        return f"{filters.field} {filters.op} {filters.value}"
    if isinstance(filters, Not):
        return f"not ({describe(filters.not_)})"
    if isinstance(filters, And):
        return "(" + " and ".join(map(describe, filters.and_)) + ")"
    return "(" + " or ".join(map(describe, filters.or_)) + ")"


def describe_scope(scope: Scope) -> str:
    parts = [f"bucket{'s' if len(scope.buckets) > 1 else ''} {', '.join(scope.buckets)}"] if scope.buckets else []
    parts += [f"filter {describe(scope.filters)}"] if scope.filters else []
    return " and ".join(parts) or "all buckets"


def blocking_parts(blocking: Filter) -> list[Filter]:
    """What must be given up together for any passage to be left."""
    return blocking.and_ if isinstance(blocking, And) else [blocking]


def without(filters: Filter, blocking: Filter) -> Filter | None:
    """The filter less those of its parts that must all hold and are blocking; None when nothing is left."""
    if filters in blocking_parts(blocking):
        return None
    if not isinstance(filters, And):
        return filters
    rest = [part for f in filters.and_ if (part := without(f, blocking)) is not None]
    if not rest:
        return None
    return rest[0] if len(rest) == 1 else And(and_=rest)


def left_out(count: int, missing: Sequence[str]) -> str:
    """Says that sentences were removed, and what was asked for and is in none of the others."""
    what = "A sentence was" if count == 1 else f"{count} sentences were"
    said = f"{what} left out, since the documents that were searched do not bear {'it' if count == 1 else 'them'} out."
    return f"{said} Nothing was found about: {', '.join(missing)}." if missing else said


def disagree(conflict: Conflict) -> str:
    """Says what each document says, and which is the newest."""
    said = ", ".join(f"[{side.number}] says {side.value}" for side in conflict.sides)
    newest = next((side for side in conflict.sides if side.number == conflict.newest), None)
    told = "newer" if len(conflict.sides) == 2 else "newest"
    return f"The documents disagree: {said}." + (
        f" The {told} one is [{newest.number}] ({newest.date})." if newest else ""
    )


def not_written(reason: str) -> str:
    return f"No search was made for this{f' ({reason})' if reason else ''}, and no answer could be written."


def empty(blocking: Filter, count: int | None) -> str:
    """Says what left nothing, and how much is there without it."""
    there = there_are(count or 0)
    if len(parts := blocking_parts(blocking)) == 1:
        return f"No passage has {describe(blocking)}. Without that filter {there}."
    told = " and ".join(map(describe, parts))
    return f"No passage passes the whole filter, and leaving out one condition is not enough: without {told} {there}."


def there_are(count: int) -> str:
    return f"there {'is' if count == 1 else 'are'} {count}"


CUT_SHORT: Mapping[TerminatedBy, str] = {
    "rounds": "its bound of rounds",
    "tool_budget": "its budget of calls and tokens",
    "deadline": "its deadline",
}


def nothing_found(queries: Sequence[str], buckets: Sequence[str], explain: Explain | None, end: TerminatedBy) -> str:
    """Says that the documents do not answer, what was searched, and what cut the search short, if anything did."""
    if explain is None:
        return "No search could finish within the deadline, so that nothing is known about this question yet."
    if explain.blocking is not None:
        return f"{empty(explain.blocking, explain.count_without)} So the documents do not answer this question."
    where = f"bucket{'s' if len(buckets) > 1 else ''} {', '.join(buckets)}" if buckets else "all buckets"
    tried = "; ".join(f"'{query}'" for query in queries)
    return (
        f"The documents that were searched do not answer this question. "
        f"Searched: {explain.allowed_rows} passages in {where}, for {tried}."
        + (f" The search was cut short by {CUT_SHORT[end]}: more may be there." if end in CUT_SHORT else "")
    )
