"""Ray's token from a plain shell, where nobody has set RAY_AUTH_MODE: Ray reads it once, when it is imported."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from assay.__main__ import COMMANDS
from assay.errors import SetupError
from assay.index.parse.parser import Limits
from deployments.bulk import Job, reads

ROOT = Path(__file__).parents[2]
SENDS = """
import importlib, sys
importlib.import_module(sys.argv[1])
from ray._private.authentication.authentication_utils import is_token_auth_enabled
sys.exit(0 if is_token_auth_enabled() else 7)
"""
# What a command imports of the shell, and what others than commands begin with.
FIRST = sorted({module for module, _ in COMMANDS.values() if module.startswith("deployments.")} | {
    "deployments.bulk", "deployments.attach", "deployments.running"
})  # fmt: skip


def sends(module: str, **more: str) -> int:
    environment = {name: value for name, value in os.environ.items() if name != "RAY_AUTH_MODE"} | more
    return subprocess.run([sys.executable, "-c", SENDS, module], cwd=ROOT, env=environment, check=False).returncode


@pytest.mark.parametrize("module", FIRST)
def test_the_token_is_sent_whatever_is_imported_first(module: str) -> None:
    assert sends(module) == 0


def test_who_sets_the_variable_is_heard() -> None:
    assert sends("deployments.attach", RAY_AUTH_MODE="disabled") == 7


@pytest.mark.parametrize(
    ("address", "said", "told"),
    [
        (
            "local",
            'Failed to start GCS.\n\n.Last connection error: Traceback (most recent call last):\n  File "node.py", line 996\n'
            "ray.exceptions.AuthenticationError: RPC error: InvalidAuthToken: missing or incorrect",
            "no Ray could be started on this machine: its token and this command's are not the same "
            "(see RAY_AUTH_MODE and RAY_AUTH_TOKEN)",
        ),
        (
            "10.0.0.1:6379",
            '\n Ray cannot be reached. \nTraceback (most recent call last):\n  File "node.py", line 996',
            "there is no Ray cluster at '10.0.0.1:6379' that can be used ('local' starts one): Ray cannot be reached.",
        ),
        ("auto", "", "there is no Ray cluster at 'auto' that can be used ('local' starts one): RuntimeError"),
    ],
)
def test_a_cluster_that_cannot_be_used_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, address: str, said: str, told: str
) -> None:
    def refuses(**_: object) -> None:
        raise RuntimeError(said)

    monkeypatch.setattr("ray.init", refuses)
    with pytest.raises(SetupError) as fault, reads(address, Job("docs", "small", tmp_path, Limits(), ())):
        pass
    assert str(fault.value) == told
