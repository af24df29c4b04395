"""FastAPI's OpenAPI document put right: the shapes of streams' payloads among the others, no answer that is never given, shapes
called after their ids, and examples whole."""

import json
from functools import cache
from typing import Any

from fastapi import FastAPI
from fastapi.encoders import jsonable_encoder
from fastapi.routing import APIRoute

from deployments.openapi_events import REF, SHAPES

_FRAMEWORKS = "HTTPValidationError"
# What follows ids from one route to the next (schemathesis does) looks for the shape that an id is called after.
_BY_THEIR_IDS = {"DocumentRow": "Doc", "SearchHit": "Chunk"}


def finish(app: FastAPI) -> None:
    """Has the app's document made once, and put right."""
    made = app.openapi

    @cache
    def finished() -> dict[str, Any]:
        document = made()
        _restore_nulls(app, document["paths"])
        for operation in (each for path in document["paths"].values() for each in path.values()):
            if _FRAMEWORKS in json.dumps(operation["responses"].get("422", {})):
                del operation["responses"]["422"]  # which a door that says 400 never sends
        schemas = document["components"]["schemas"]
        own = {name: shape for name, shape in schemas.items() if name not in (_FRAMEWORKS, "ValidationError")}
        document["components"]["schemas"] = {**SHAPES, **own}
        text = json.dumps(document)
        for shape, name in _BY_THEIR_IDS.items():
            text = text.replace(f'"{REF}{shape}"', f'"{REF}{name}"').replace(f'"{shape}":', f'"{name}":')
        named: dict[str, Any] = json.loads(text)
        return named

    app.openapi = finished  # type: ignore[method-assign]  # FastAPI's documented way to extend its document


def _restore_nulls(app: FastAPI, paths: dict[str, Any]) -> None:
    """FastAPI leaves every null out of its document, also those that an example needs to be of its shape."""
    for route in app.routes:
        if not isinstance(route, APIRoute) or not route.include_in_schema:
            continue
        for status, response in route.responses.items():
            for media, content in response.get("content", {}).items():
                for method in route.methods if "example" in content else ():
                    said = paths[route.path_format][method.lower()]["responses"][str(status)]["content"][media]
                    said["example"] = jsonable_encoder(content["example"])
