"""One real graph for the whole session, over the KServe documentation: real Ray, the real model, the real index."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import yaml

from assay.client import Client
from assay.llm.endpoint import EndpointConfig
from assay.llm.http import EndpointLLM
from assay.serve_config import load
from deployments.local import LocalGraph, descendants

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data"
KSERVE = DATA / "markdown" / "kserve_docs"
CONTEXT = 8192  # tokens of the engine: all that the model has, for the schemas of mode `tools`
PATIENCE_S = 300  # where 20 s are usual


@dataclass(frozen=True, slots=True)
class Running:
    """The graph, a client of its HTTP door, and the index that it serves."""

    graph: LocalGraph
    client: Client
    index: Path
    openai_url: str

    def has_replica(self, deployment: str) -> bool:
        return bool(self._replicas(deployment))

    def replica(self, deployment: str) -> psutil.Process:
        """The process of a deployment's replica."""
        found = self._replicas(deployment)
        assert found, f"no process is a replica of {deployment}"
        return found[0]

    def _replicas(self, deployment: str) -> list[psutil.Process]:
        title = f"ray::ServeReplica:assay:{deployment}"
        return [p for p in descendants(self.graph.pid) if any(title in part for part in _command(p))]


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:  # ended, or waits for its parent to notice
        return []


def assay(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """``python -m assay ...`` from the project's folder, as in a shell where nobody has set what Ray reads; its output is
    text."""
    command = [sys.executable, "-m", "assay", *map(str, arguments)]
    plain = {name: value for name, value in os.environ.items() if name != "RAY_AUTH_MODE"}
    return subprocess.run(command, cwd=ROOT, env=plain, capture_output=True, text=True, timeout=900, check=False)


def kserve() -> Path:
    if not KSERVE.is_dir():
        pytest.skip("needs the data folder beside the project: markdown/kserve_docs")
    return KSERVE


@pytest.fixture(scope="package")
def kserve_index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, index = kserve(), tmp_path_factory.mktemp("kserve") / "index"
    done = assay("ingest", folder, "--index", index, "--bucket", "kserve", "--base", folder)
    assert done.returncode == 0, done.stderr
    return index


@pytest.fixture(scope="package")
def running(
    kserve_index: Path, tmp_path_factory: pytest.TempPathFactory, free_tcp_port_factory: Callable[[], int]
) -> Iterator[Running]:
    raw = yaml.safe_load((ROOT / "configs" / "local.yaml").read_text())
    args, openai_port = raw["applications"][0]["args"], free_tcp_port_factory()
    args["index"] = {"uri": str(kserve_index)}
    args["reranker"]["placement"] = "deployment"  # both placements in one graph; and one whose replica can hang
    # The engine's own OpenAI API beside it, tool calls and a context that their schemas fit, and a health check that does not
    # keep a test waiting for long.
    args["engines"]["small"] |= {"openai_port": openai_port, "tool_parser": "hermes", "max_model_len": CONTEXT}
    args["engines"]["small"]["health_timeout_s"] = 10
    # A slow machine writes a long answer, too; the tests of a deadline ask with their own.
    args["loop"]["deadline_s"] = PATIENCE_S
    args["tools"] = {"turn_s": PATIENCE_S}
    folder = tmp_path_factory.mktemp("graph")
    (folder / "local.yaml").write_text(yaml.safe_dump(raw))
    with LocalGraph(load(folder / "local.yaml"), log=folder / "serve.log", port=free_tcp_port_factory()) as graph:
        graph.wait_ready(600)
        with Client(graph.url, timeout_s=PATIENCE_S) as client:
            yield Running(graph, client, kserve_index, f"http://127.0.0.1:{openai_port}/v1")


@pytest.fixture(scope="package")
def ray_address(running: Running) -> Iterator[str]:
    """Connects this process to the graph's Ray, for calls by handle."""
    from deployments.attach import attached  # imports ray, which no unit test may

    with attached(running.graph.address):
        yield running.graph.address


@pytest.fixture
def engine(ray_address: str):  # type: ignore[no-untyped-def]  # RemoteLLM would import ray where unit tests are collected
    from ray import serve

    from deployments.remote import RemoteLLM

    return RemoteLLM("small", serve.get_deployment_handle("engine-small", "assay"))


@pytest.fixture
async def over_http(running: Running) -> AsyncIterator[EndpointLLM]:
    """The same engine, through its OpenAI API: the real model behind the HTTP engine."""
    fields = {"kind": "openai", "preset": "vllm", "model": "small", "base_url": running.openai_url}
    llm = EndpointLLM(EndpointConfig.model_validate(fields))
    yield llm
    await llm.close()
