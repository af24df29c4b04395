"""Who may see a document: the optional field ``allowed_groups`` of its metadata, whatever the schema of its bucket.

A document without it is seen by all who see its bucket. One that has it and names no group that could be held is seen by
nobody: what was to be kept from others must not be shown to them because it was written wrongly.
"""

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from assay.index.parse.parsed import Raw

# The groups that somebody holds; None for all of them. Without any, only documents that name none are seen.
Groups = tuple[str, ...] | None

FIELD = "allowed_groups"
NAME = r"[A-Za-z0-9][A-Za-z0-9._:@/+-]{0,99}"
MOST = 200
T = TypeVar("T")


def listed(text: str) -> list[str]:
    """The names of a list in one line."""
    return [name for part in re.split("[;|,]", text) if (name := part.strip())]


def groups_of(raw: Mapping[str, "Raw"]) -> tuple[list[str] | None, tuple[str, ...]]:
    """The groups that a document's metadata names, None for no such field; and what of it cannot be used."""
    if FIELD not in raw:
        return None, ()
    said = raw[FIELD]
    names = (
        listed(said)
        if isinstance(said, str)
        else [str(item).strip() for item in _items(said) if not isinstance(item, bool)]
    )
    groups = [name for name in dict.fromkeys(names) if re.fullmatch(NAME, name)][:MOST]
    odd = ", ".join(name[:80] for name in names if name not in groups)
    problems = [f"{FIELD}: no names of groups: {odd[:200]!r}"] if odd else []
    problems += [] if groups else [f"{FIELD} names no group: nobody sees the document"]
    return groups, tuple(problems)


def may_see(held: Groups, metadata: Mapping[str, "Raw"]) -> bool:
    """Whether a document with such metadata is there for whoever holds some groups."""
    named = groups_of(metadata)[0]
    return held is None or named is None or not set(held).isdisjoint(named)


def kept(key: str, raw: "Raw | None") -> "Raw | None":
    """Empty values are left out of metadata, but for this one: it then lets nobody in."""
    return [] if raw is None and key == FIELD else raw


def first(metadata: Mapping[str, T]) -> dict[str, T]:
    """With this field before all others, of which only so many are kept."""
    return {**({FIELD: metadata[FIELD]} if FIELD in metadata else {}), **metadata}


def met(held: Groups, asserted: Iterable[str]) -> tuple[str, ...]:
    """Those of some groups that are held."""
    return tuple(sorted(name for name in set(asserted) if held is None or name in held))


def _items(said: "Raw") -> Iterable[object]:
    return said if isinstance(said, list) else [said]
