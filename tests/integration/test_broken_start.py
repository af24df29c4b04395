"""Ctrl-C while the graph starts: the launcher of ``make serve``, real Ray, and a graph without a model."""

import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import yaml

ROOT = Path(__file__).parents[2]
CONFIG = {
    "http_options": {"host": "127.0.0.1"},
    "applications": [
        {
            "name": "assay",
            "route_prefix": "/",
            "import_path": "tests.wiring.slow_graph:build_app",
            "runtime_env": {"env_vars": {"PYTHONPATH": str(ROOT)}},
        }
    ],
}


def marked(mark: str) -> list[psutil.Process]:
    """Every process of this machine that inherited the mark."""
    return [p for p in psutil.process_iter() if _environ(p).get("ASSAY_TEST_MARK") == mark]


def _environ(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except psutil.Error:
        return {}


@pytest.mark.parametrize(
    ("line", "number"),
    [("graph (log: ", signal.SIGINT), ("Ray is up", signal.SIGINT), ("graph built, starting it", signal.SIGTERM)],
    ids=["while its process starts", "while the graph is built", "while a replica starts"],
)
def test_an_interrupted_start_leaves_nothing(
    tmp_path: Path, free_tcp_port_factory: Callable[[], int], line: str, number: signal.Signals
) -> None:
    mark, config = uuid.uuid4().hex, tmp_path / "slow.yaml"
    config.write_text(yaml.safe_dump(CONFIG))
    command = [sys.executable, "-m", "deployments.launch", str(config), "--port", str(free_tcp_port_factory())]
    environ = {**os.environ, "ASSAY_TEST_MARK": mark, "PYTHONPATH": str(ROOT)}
    try:
        with subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            said = next((text for text in process.stdout if line in text), None)
            assert said is not None, "it ended before it came so far"
            process.send_signal(number)
            rest = process.stdout.read()
            assert process.wait(60) == 128 + number
    finally:
        left = marked(mark)
        for one in left:
            one.kill()
    assert left == []
    assert rest.rstrip().endswith("stopped")
    assert list(Path(tempfile.gettempdir()).glob(f"assay-{process.pid}-*")) == []
