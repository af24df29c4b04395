"""How many tokens a model writes that fills every text and list of a JSON schema up to its bound, as small ones do.

The tokens of an answer must have room for them, since one that is cut off is none.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

# Of an answer's tokens, what its longest may take: a model's own words may need more of them than those that it read.
FILLED = 0.9
# A number without bounds has digits without end. Engines give one with bounds at most six after the point.
_MOST = 10**18
NUMBER = {"type": "number", "minimum": -_MOST, "maximum": _MOST}

_LITERALS = {"number": f"-{_MOST - 1}.123456", "boolean": "false", "null": "null"}
_DAY = "2026-01-31"  # what a pattern admits: every one of ours is a day's
_LEAST_RATE, _STEP, _READ = 0.35, 0.05, 4_000  # tokens per character; the step between two; characters
# Letters and their marks of other scripts than the Latin one; signs and emoji are none.
_OTHER = re.compile("[\u0370-\u1dff\u2c00-\u2dff\u2e80-\ud7ff\uf900-\ufdff\U00020000-\U0003ffff]{2,}")

Count = Callable[[str], int]


def rate_of(text: str, count: Count) -> float:
    """Tokens per character of what is written about ``text``, or about its words of another script where those take more. It is
    rounded up, so that texts that are alike have one."""
    read = text[:_READ]
    parts = (read, "".join(_OTHER.findall(read)))
    most = max((count(part) / len(part) for part in parts if part), default=0.0)
    return math.ceil(max(most, _LEAST_RATE) / _STEP - 1e-9) * _STEP


def longest(schema: Mapping[str, Any], rate: float, count: Count) -> int:
    """The tokens of the longest JSON of a schema in which every text and list is bounded."""
    if kinds := schema.get("anyOf"):
        return max(longest(kind, rate, count) for kind in kinds)
    if values := schema.get("enum"):
        return max(count(json.dumps(value, ensure_ascii=False)) for value in values)
    match schema["type"]:
        case "object":
            parts = schema["properties"].items()
            return 2 + sum(count(f', "{name}": ') + longest(part, rate, count) for name, part in parts)
        case "array":
            return 2 + int(schema["maxItems"]) * (count(", ") + longest(schema["items"], rate, count))
        case "string":
            return 2 + (math.ceil(schema["maxLength"] * rate) if "maxLength" in schema else count(_DAY))
        case kind:
            return count(_LITERALS[kind])
