"""The registry of tools: the built-in ones, the web where the config names an endpoint, and a user's own."""

import json
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

from assay.config import ToolsConfig
from assay.custom import load
from assay.errors import AssayError, InvalidRequest, NotFound, SetupError, StageFault
from assay.llm.tools import schema_fault
from assay.tools.base import Tool, ToolContext, ToolOutput
from assay.tools.builtin import builtin_tools
from assay.tools.web import WebSearch
from assay.types import ToolSpec

log = logging.getLogger("assay.tools")

_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")


class Registry:
    def __init__(self, tools: Sequence[Tool]) -> None:
        """Raises ``SetupError`` for a name that is taken or is none, or a schema that is none."""
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            _check(tool)
            if tool.name in self._tools:
                raise SetupError(f"Two tools are called '{tool.name}'.", "tools")
            self._tools[tool.name] = tool

    @classmethod
    def of(cls, config: ToolsConfig) -> "Registry":
        """What the config offers: the ``enabled`` ones (none: all), the web with an endpoint, and all of ``own``."""
        tools: list[Tool] = [*builtin_tools()]
        if config.web.endpoint is not None:
            tools.append(WebSearch(config.web))
        names = tuple(tool.name for tool in tools)
        if config.enabled is not None:
            if unknown := [name for name in config.enabled if name not in names]:
                raise SetupError(f"tools.enabled: there is no tool '{unknown[0]}'.", "tools.enabled", names)
            tools = [tool for tool in tools if tool.name in config.enabled]
        return cls([*tools, *(_own(ref, i) for i, ref in enumerate(config.own))])

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._tools)

    def specs(self, buckets: Sequence[str] = ()) -> tuple[ToolSpec, ...]:
        """As a model is told of them. ``buckets``: the names that it may use, where they are known."""
        return tuple(
            ToolSpec(tool.name, tool.description, json.dumps(_narrowed(tool.parameters, buckets), ensure_ascii=False))
            for tool in self._tools.values()
        )

    async def call(self, name: str, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Raises ``NotFound`` for a tool that there is not, ``InvalidRequest`` for arguments that are not of its schema, and
        what the tool raises: of a bug in it, a ``StageFault``."""
        tool = self._tools.get(name)
        if tool is None:
            raise NotFound(f"There is no tool '{name[:60]}'.", "tool", self.names)
        if fault := schema_fault(json.dumps(dict(tool.parameters)), dict(arguments), f"The arguments of {name}"):
            raise InvalidRequest(fault, "arguments")
        try:
            return await tool.call(arguments, context)
        except AssayError:
            raise
        except Exception as error:  # a user's own tool may raise anything, and the question goes on without it
            log.exception("the tool %s failed", name)
            raise StageFault(f"The tool {name} failed: {type(error).__name__}.") from error


def _own(ref: str, place: int) -> Tool:
    """A user's tool, made without arguments."""
    field = f"tools.own[{place}]"
    kind = load(field, ref)
    try:
        tool: Tool = kind()
    except TypeError as error:
        raise SetupError(f"{field}: '{ref}' must be made without arguments: {error}", field) from error
    for part in ("name", "description", "parameters", "call"):
        if not hasattr(tool, part):
            raise SetupError(f"{field}: '{ref}' lacks {part}; see docs/agent.md.", field)
    return tool


def _check(tool: Tool) -> None:
    if not _NAME.fullmatch(str(tool.name)):
        raise SetupError(f"'{tool.name}' is no name of a tool: lower-case letters, digits and _.", "tools")
    schema = dict(tool.parameters)
    if schema.get("type") != "object":
        raise SetupError(f"The parameters of the tool '{tool.name}' must be a JSON schema of type object.", "tools")
    try:
        schema_fault(json.dumps(schema), {}, "")
    except (TypeError, SetupError) as error:
        raise SetupError(f"The parameters of the tool '{tool.name}' are no JSON schema: {error}", "tools") from None


def _narrowed(parameters: Mapping[str, Any], buckets: Sequence[str]) -> dict[str, Any]:
    properties = parameters.get("properties", {})
    if not buckets or "bucket" not in properties:
        return dict(parameters)
    told = properties["bucket"].get("description", "")
    bucket = {"description": told, "enum": [*buckets, None]}
    if "bucket" in parameters.get("required", ()):
        bucket = {"description": told, "enum": list(buckets)}
    return {**parameters, "properties": {**properties, "bucket": bucket}}
