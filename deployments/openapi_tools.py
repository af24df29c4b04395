"""What the OpenAPI document says of tools."""

from typing import Any

from deployments.openapi import ID_HEADER, responses

_TOOL = {
    "name": "search_text",
    "description": "Search by words: names, numbers, identifiers, exact terms.",
    "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
}
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["tools"],
    "properties": {
        "tools": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name", "description", "parameters"],
                "properties": {
                    "name": {"type": "string"},
                    "description": {"type": "string"},
                    "parameters": {"type": "object", "description": "JSON schema of the arguments."},
                },
            },
        }
    },
}

TOOLS: dict[str, Any] = {
    "operation_id": "tools",
    "summary": "The tools of the registry",
    "responses": {
        200: {
            "description": "The tools, as an agent sees them",
            "headers": ID_HEADER,
            "content": {"application/json": {"schema": _SCHEMA, "example": {"tools": [_TOOL]}}},
        },
        **responses(404, 500, 503, 504),
    },
}
