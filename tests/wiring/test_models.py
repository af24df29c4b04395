"""The model that comes inside a package, as a graph takes it."""

from pathlib import Path

import pytest

from assay import models
from assay.errors import SetupError


def test_a_graph_does_not_take_a_damaged_model(tmp_path: Path) -> None:
    """By the name of the model and of the file; a graph's builder never prepares."""
    with pytest.raises(SetupError, match=r"'embedded:smollm2.*not prepared.*run: python -m assay prepare"):
        models.resolve_model(models.LLM_REF, tmp_path)
    folder = models.prepare(models._gguf(), tmp_path, lambda _: None, lambda _, folder, __: _one_file(folder))
    assert models.resolve_model(models.LLM_REF, tmp_path, verify=True) == str(folder)
    (folder / "config.json").write_text("[]")
    with pytest.raises(SetupError, match=r"'embedded:smollm2.*config\.json has other bytes") as caught:
        models.resolve_model(models.LLM_REF, tmp_path, verify=True)
    assert "\n" not in str(caught.value)


def _one_file(folder: Path) -> None:
    (folder / "config.json").write_text("{}")
