"""The longest JSON of a schema, written out: what ``assay.llm.longest`` has to be right about."""

import json
from collections.abc import Callable, Mapping
from typing import Any


def worst(schema: Mapping[str, Any], words: str, count: Callable[[str], int]) -> str:
    """By the tokens of its parts, its texts made of ``words``; as engines write it under a grammar, a space after each sign."""
    if kinds := schema.get("anyOf"):
        return max((worst(kind, words, count) for kind in kinds), key=count)
    if values := schema.get("enum"):
        return max((json.dumps(value, ensure_ascii=False) for value in values), key=count)
    match schema["type"]:
        case "object":
            parts = (f'"{name}": {worst(part, words, count)}' for name, part in schema["properties"].items())
            return "{" + ", ".join(parts) + "}"
        case "array":
            return "[" + ", ".join([worst(schema["items"], words, count)] * schema["maxItems"]) + "]"
        case "string":
            text = words * (schema["maxLength"] // len(words) + 1) if "maxLength" in schema else "2026-01-31"
            return f'"{text[: schema.get("maxLength")]}"'
        case kind:
            return {"number": "-999999999999999999.123456", "boolean": "false", "null": "null"}[kind]
