"""What is compared: the configuration of a retriever and of its index's legs, and a search's legs, under a name."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator

from assay.config import Legs, RetrieverConfig
from assay.errors import InvalidRequest
from assay.schemas import link_follows
from assay.types import LEGS, Leg

PRESETS: dict[str, dict[str, Any]] = {
    "default": {},
    "dense": {"legs": ["dense"]},
    "sparse": {"legs": ["sparse"]},
    "rrf": {"fusion": "rrf"},
    "minmax": {"fusion": "minmax"},
    "link": {"legs": ["dense", "sparse", "link"]},
}

_UNTOLD = ("implementation", "timeout_s")  # neither changes what this retriever finds
_PATIENCE_S = 600.0  # a leg that is given up would be measured as a worse one


class _Options(RetrieverConfig, Legs):
    legs: list[Literal["dense", "sparse", "link"]] = Field(default=["dense", "sparse"], min_length=1)

    _linked = field_validator("legs")(link_follows)


@dataclass(frozen=True, slots=True)
class Setup:
    name: str
    config: RetrieverConfig
    index: Legs
    legs: tuple[Leg, ...] = LEGS
    link_hop: bool = False


def setup(name: str, options: dict[str, Any]) -> Setup:
    """Options of ``RetrieverConfig`` and of ``config.Legs``, and ``legs``. Raises ``InvalidRequest`` with the option and what
    is allowed."""
    allowed = tuple(option for option in _Options.model_fields if option not in _UNTOLD)
    if unknown := [option for option in options if option not in allowed]:
        raise InvalidRequest(f"the configuration '{name}' has an unknown option '{unknown[0]}'", "config", allowed)
    try:
        checked = _Options.model_validate({**options, "timeout_s": _PATIENCE_S})
    except ValidationError as e:
        first = e.errors()[0]
        where = ".".join(map(str, first["loc"]))
        said = first["msg"].removeprefix("Value error, ")
        raise InvalidRequest(f"the configuration '{name}', {where}: {said}", "config") from None
    config = RetrieverConfig(**checked.model_dump(include=set(RetrieverConfig.model_fields)))
    index = Legs(**checked.model_dump(include=set(Legs.model_fields)))
    legs = tuple(leg for leg in LEGS if leg in checked.legs)
    return Setup(name, config, index, legs, "link" in checked.legs)


def setups(given: Sequence[str]) -> list[Setup]:
    """Of ``NAME={...}`` or the name of a preset, in order; all presets where none is given. Raises ``InvalidRequest``."""
    found: dict[str, Setup] = {}
    for text in given or PRESETS:
        name, equals, options = text.partition("=")
        name = name.strip()
        if not equals and name not in PRESETS:
            raise InvalidRequest(
                f"'{text[:80]}' is no configuration: write NAME={{...}}, or name one that is known",
                "config",
                tuple(PRESETS),
            )
        if not name or name in found:
            raise InvalidRequest(f"each configuration needs a name of its own: '{text[:80]}'", "config")
        found[name] = setup(name, _object(name, options) if equals else PRESETS[name])
    return list(found.values())


def _object(name: str, text: str) -> dict[str, Any]:
    try:
        options = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as e:
        raise InvalidRequest(
            f'the configuration \'{name}\' is no JSON ({e}); an example: {name}={{"fusion": "rrf"}}', "config"
        ) from None
    if not isinstance(options, dict):
        raise InvalidRequest(f"the configuration '{name}' must be a JSON object", "config")
    return options
