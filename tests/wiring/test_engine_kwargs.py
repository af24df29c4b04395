"""What vLLM is started with: ours, and what ``engine_kwargs`` says over it."""

from typing import Any

import pytest

from assay.config import EngineConfig
from deployments.engine.server import _engine_kwargs


@pytest.mark.parametrize(
    ("own", "changed"),
    [
        ({}, {}),
        ({"reasoning_parser": "qwen3"}, {"reasoning_parser": "qwen3"}),
        ({"backend": "guidance"}, {"backend": "guidance"}),
        ({"disable_any_whitespace": False}, {"disable_any_whitespace": False}),
    ],
)
def test_structured_outputs_keep_the_fields_that_are_not_named(own: dict[str, Any], changed: dict[str, Any]) -> None:
    """Without the switch a model may write whitespace between the fields of a plan until its tokens are used up."""
    config = EngineConfig(dtype="float32", engine_kwargs={"structured_outputs_config": own})
    ours = _engine_kwargs(EngineConfig(dtype="float32"))
    assert ours["structured_outputs_config"] == {"backend": "xgrammar", "disable_any_whitespace": True}
    outputs = ours["structured_outputs_config"] | changed
    assert _engine_kwargs(config) == ours | {"structured_outputs_config": outputs}


def test_what_engine_kwargs_say_wins() -> None:
    said = {"max_num_seqs": 3, "kv_cache_memory_bytes": 2**20, "seed": 7}
    assert said.items() <= _engine_kwargs(EngineConfig(dtype="float32", engine_kwargs=said)).items()
