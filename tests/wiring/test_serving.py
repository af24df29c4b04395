"""The index behind a running graph, over HTTP: another process writes it, one of its files is torn, and searches go on."""

import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import httpx
import psutil
import pytest
import yaml
from ray.serve.generated.serve_pb2 import ASGIRequest
from ray.serve.generated.serve_pb2_grpc import ASGIServiceStub

from assay.client import Client
from assay.documents.shapes import JobStatusEvent
from assay.errors import AssayError
from assay.schemas import Predicate, SearchRequest
from assay.serve_config import load
from deployments.local import LocalGraph, descendants

ROOT = Path(__file__).parents[2]
_LOOKS = 20  # of which not all ask the same one of two replicas
WORDS = "alpha beta gamma delta epsilon zeta eta theta iota kappa".split()

pytestmark = pytest.mark.timeout(300)


def assay(*words: str | Path) -> str:
    command = [sys.executable, "-m", "assay", *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def page(folder: Path, name: str) -> Path:
    path = folder / f"{name}.md"
    path.write_text(f"# Page {name}\n\nThe pump of {name} moves water.\n")
    return path


@dataclass
class Served:
    graph: LocalGraph
    client: Client
    folder: Path
    index: Path

    def ingest(self, *paths: Path) -> None:
        assay("ingest", *paths, "--index", self.index, "--base", self.folder)

    def uris(self, question: str) -> list[str]:
        return [hit.uri for hit in self.client.search(SearchRequest(question=question, top_k=20)).hits]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, free_tcp_port_factory: Any) -> Iterator[Served]:
    """The whole graph but for an engine, which no search asks, and with two retrievers, of which any may answer; a byte of its
    dense leg is not what was written."""
    folder, index = tmp_path_factory.mktemp("pages"), tmp_path_factory.mktemp("serving") / "index"
    for word in WORDS:
        page(folder, word)
    assay("ingest", folder, "--index", index, "--base", folder)
    vectors = next(index.glob("segments/*/dense.vectors.npy"))
    data = bytearray(vectors.read_bytes())
    data[-3] ^= 1
    vectors.write_bytes(data)
    raw = yaml.safe_load((ROOT / "configs" / "local.yaml").read_text())
    application = raw["applications"][0]
    application["import_path"] = "bench.search_http:build_app"
    application["args"]["index"] = {"uri": str(index), "poll_s": 0.2}
    application["args"]["ingress"] = {"documents": {"path": str(folder.parent / "uploads")}, "max_body_bytes": 2**24}
    next(item for item in application["deployments"] if item["name"] == "Retriever")["num_replicas"] = 2
    (folder.parent / "serving.yaml").write_text(yaml.safe_dump(raw))
    port, log = free_tcp_port_factory(), folder.parent / "serving.log"
    with LocalGraph(load(folder.parent / "serving.yaml"), log=log, port=port) as graph:
        graph.wait_ready(240)
        with Client(graph.url) as client:
            yield Served(graph, client, folder, index)


def test_a_torn_leg_is_told_and_mended_without_a_restart(served: Served) -> None:
    ready = served.client.ready()
    assert ready.status == "degraded"
    assert "dense.vectors.npy" in ready.reasons[0]
    found = served.client.search(SearchRequest(question="pump of gamma"))
    assert found.hits[0].uri == "gamma.md"
    assert [d.fallback for d in found.degraded] == ["the sparse leg alone"]
    served.ingest(served.folder)
    assert soon(lambda: all(served.client.ready().status == "ready" for _ in range(_LOOKS)))
    assert served.client.search(SearchRequest(question="pump of gamma")).degraded == []


@dataclass
class Load:
    """Searches over HTTP, one after the other, until it is told to stop."""

    url: str
    versions: list[str] = field(default_factory=list)
    faults: list[Exception] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        with Client(self.url) as client:
            while not self.stop.is_set():
                try:
                    found = client.search(SearchRequest(question="pump of gamma", top_k=20))
                    assert found.degraded == []
                    assert found.hits[0].uri == "gamma.md"
                    uris = [hit.uri for hit in found.hits]
                    assert len(uris) == len(set(uris)), "an old and a new text of one document"
                    self.versions.append(found.index_version)
                except (AssertionError, AssayError, httpx.HTTPError) as fault:
                    self.faults.append(fault)


def test_a_call_of_more_than_four_megabytes_arrives(served: Served) -> None:
    """Which is the most that gRPC takes where nobody says otherwise."""
    names = Predicate(field="uri", op="in", value=["gamma.md", *(f"{n:030}.md" for n in range(150_000))])
    found = served.client.search(SearchRequest(question="pump", filters=names))
    assert {hit.uri for hit in found.hits} == {"gamma.md"}


def test_nobody_without_rays_token_calls_a_replica(served: Served) -> None:
    """Its port takes pickles, and reading one may run anything."""
    marker = served.folder.parent / "called"
    request = ASGIRequest(pickled_request_metadata=pickle.dumps(Call(marker)))
    said = set()
    replicas = [p for p in descendants(served.graph.pid) if " ".join(p.cmdline()).startswith("ray::ServeReplica")]
    for port in {c.laddr.port for p in replicas for c in p.net_connections("tcp") if c.status == psutil.CONN_LISTEN}:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel, pytest.raises(grpc.RpcError) as refused:
            ASGIServiceStub(channel).HandleRequest(request, timeout=10)
        said.add(refused.value.code())
    assert grpc.StatusCode.UNAUTHENTICATED in said and not marker.exists()


def test_the_doors_go_first(served: Served) -> None:
    """Driver and Retriever stand back with all their threads, those that came before their constructor too."""
    nices: dict[str, set[int]] = {}
    for process in descendants(served.graph.pid):
        for name in ("Ingress", "Driver", "Retriever", "ProxyActor"):
            if f":{name}" in (title := " ".join(process.cmdline())) and title.startswith("ray::"):
                for thread in process.threads():
                    with suppress(ProcessLookupError):
                        nices.setdefault(name, set()).add(os.getpriority(os.PRIO_PROCESS, thread.id))
    assert {name: max(found) for name, found in nices.items()} == {
        "Ingress": 0,
        "ProxyActor": 0,
        "Driver": 4,
        "Retriever": 4,
    }
    assert min(nices["Driver"] | nices["Retriever"]) == 4


@dataclass(frozen=True)
class Call:
    """A pickle that makes a file where it is read."""

    path: Path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_another_process_writes_and_no_search_fails(served: Served) -> None:
    loads = [Load(served.graph.url) for _ in range(2)]
    threads = [threading.Thread(target=load.run) for load in loads]
    for thread in threads:
        thread.start()
    try:
        for word in ("lambda", "omicron"):
            served.ingest(page(served.folder, word))
            assert soon(lambda word=word: f"{word}.md" in served.uris(f"pump of {word}"))
        (served.folder / "gamma.md").write_text("# Page gamma\n\nThe pump of gamma moves cold water now.\n")
        served.ingest(served.folder / "gamma.md")
        assay("delete", "lambda.md", "--index", served.index)
        assert soon(lambda: not any("lambda.md" in served.uris("pump of lambda") for _ in range(_LOOKS)))
    finally:
        for load in loads:
            load.stop.set()
        for thread in threads:
            thread.join()
    assert [load.faults for load in loads] == [[], []]
    assert len(set(loads[0].versions)) >= 4, "searches ran under every snapshot"


def test_an_upload_is_searched_and_a_deletion_is_not(served: Served) -> None:
    """Through the graph's own ingester, with the real embedder and parser, beside the command that writes the same index."""
    text = b"# Page sigma\n\nThe pump of sigma moves oil.\n"
    job = served.client.upload("default", [("sigma.md", text)], {"sigma.md": {"unit": "oil"}})
    served.ingest(page(served.folder, "tau"))
    done = served.client.wait(job.id)
    assert [file.outcome for file in done.files] == ["ingested"]
    assert served.uris("pump of sigma")[0] == "sigma.md"
    view = served.client.document(done.files[0].doc_id)
    assert (view.document.uri, "".join(part.text for part in view.parts)) == ("sigma.md", text.decode())
    served.client.delete_document(done.files[0].doc_id)
    assert "sigma.md" not in served.uris("pump of sigma")
    assert soon(lambda: "tau.md" in served.uris("pump of tau"))


def test_what_is_acknowledged_holds_for_every_replica(served: Served) -> None:
    """``served`` has two, which look for a new snapshot each at its own time."""
    names = [f"upsilon{n}.md" for n in range(3)]
    text = "# Page {0}\n\nThe pump of {0} moves tar.\n"
    job = served.client.upload("default", [(name, text.format(name[:-3]).encode()) for name in names])
    done = served.client.wait(job.id)
    assert done.searchable
    for file in done.files:
        assert all(file.name in served.uris(f"pump of {file.name[:-3]}") for _ in range(_LOOKS))
        served.client.delete_document(file.doc_id)
        assert not any(file.name in served.uris(f"pump of {file.name[:-3]}") for _ in range(_LOOKS)), file.name


def test_an_ingester_that_dies_in_a_job_goes_on(served: Served) -> None:
    files = [(f"rho{n}.md", f"# Page rho{n}\n\nThe pump of rho{n} moves sand.\n".encode()) for n in range(100)]
    job = served.client.upload("default", files)
    with closing(served.client.job_events(job.id)) as events:
        for event in events:
            if isinstance(event, JobStatusEvent) and event.state == "running":
                break
    for process in descendants(served.graph.pid):
        with suppress(psutil.Error):
            if "Ingester" in " ".join(process.cmdline()):
                process.kill()
    done = served.client.wait(job.id)
    assert [file.outcome for file in done.files] == ["ingested"] * 100
    assert served.uris("pump of rho29")[0] == "rho29.md"
    told = [event for event in served.client.job_events(job.id) if isinstance(event, JobStatusEvent)]
    assert [event.state for event in told] == ["queued", "running", "running"]


def soon(holds: Any) -> bool:
    until = time.monotonic() + 10
    while not (held := holds()) and time.monotonic() < until:
        time.sleep(0.05)
    return bool(held)
