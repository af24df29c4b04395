"""What a model writes that fills every text and list of a JSON schema up to its bound, as small ones do.

The tokens of an answer must have room for it, since one that is cut off is none.
"""

import json
from typing import Any

# Of an answer's tokens, what its longest may take: a model's own words may need more tokens than those they are estimated by.
FILLED = 0.9
# A number without bounds has digits without end. Engines give one with bounds at most six after the point.
_MOST = 10**15
NUMBER = {"type": "number", "minimum": -_MOST, "maximum": _MOST}


def longest(schema: str, like: str) -> str:
    """The longest JSON of a schema in which everything is bounded. Its texts are pieces of ``like`` (not ""), which is in the
    language of what is to be written."""
    return json.dumps(_longest(json.loads(schema), like), ensure_ascii=False)


def _longest(node: dict[str, Any], like: str) -> Any:
    if kinds := node.get("anyOf"):
        return max((_longest(kind, like) for kind in kinds), key=_length)
    if values := node.get("enum"):
        return max(values, key=_length)
    match node["type"]:
        case "object":
            return {name: _longest(part, like) for name, part in node["properties"].items()}
        case "array":
            return [_longest(node["items"], like)] * node["maxItems"]
        case "boolean":
            return False
        case "null":
            return None
        case "number":
            return -_MOST + 0.1234
        case _:
            most = node.get("maxLength", len("2026-01-31"))  # a pattern is a day's
            return (like * (most // len(like) + 1))[:most]


def _length(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False))
