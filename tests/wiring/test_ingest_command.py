"""The command ``ingest``: a schema that it infers is confirmed first, and where its embedder runs is what the config says."""

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from assay.__main__ import main
from assay.errors import SetupError
from assay.index import embed
from assay.index.files import Layout
from assay.index.snapshot import read_current
from assay.index.store import read_state
from assay.schemas import Predicate
from assay.types import SearchQuery
from deployments import bulk
from tests.unit.index.fakes import WordEncoder
from tests.wiring.index import builders
from tests.wiring.index.builders import found, retriever, search, write

FILES = {
    "a.md": "---\namount: 4.11\nsigned: 2024-08-03\n---\n# A\n\nThe zebra sleeps.\n",
    "b.md": "---\namount: 80\nsigned: 2025-01-01\n---\n# B\n\nThe lion sleeps.\n",
}


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Of the embedders that are made; none loads a model."""
    made: list[str] = []

    class Recorded(WordEncoder):
        def __init__(self, model: str, device: str = "cpu") -> None:
            super().__init__()
            made.append(device)

    monkeypatch.setattr(embed, "SentenceEmbedder", Recorded)
    monkeypatch.setattr(bulk, "SentenceEmbedder", Recorded)
    return made


def ingest(folder: Path, index: Path, *more: str) -> int | str | None:
    with pytest.raises(SystemExit) as end:
        main(["ingest", str(folder), "--index", str(index), "--base", str(folder), *more])
    return end.value.code


# ---- the schema that is inferred ------------------------------------------------------------------------------------


def test_an_inferred_schema_that_nobody_confirms_is_shown_and_nothing_is_ingested(
    devices: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where stdin is no terminal nobody can be asked, so that the command must be told."""
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    folder = write(tmp_path / "files", FILES)
    assert ingest(folder, tmp_path / "index", "--infer-schema") == 2
    told = capsys.readouterr()
    for shown in ("amount:", "type: number", "signed:", "type: date", "# in 2 of 2 files: 4.11, 80"):
        assert shown in told.err
    assert "was not confirmed: use --yes, or write it down and give it with --schema" in told.err
    assert told.out == "", "there is no report"
    assert read_state(Layout(str(tmp_path / "index"))) is None


def test_with_yes_the_inferred_schema_is_in_force(
    devices: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(tmp_path / "files", FILES)
    assert ingest(folder, tmp_path / "index", "--infer-schema", "--yes", "--bucket", "deals") == 0
    told = capsys.readouterr()
    assert "type: number" in told.err and "2 ingested" in told.out
    state = read_state(Layout(str(tmp_path / "index")))
    assert state is not None
    assert {name: f.type for name, f in state.buckets["deals"].fields.items()} == {"amount": "number", "signed": "date"}
    late = Predicate(field="signed", op=">", value="2024-12-31")
    assert found(search(retriever(tmp_path / "index"), SearchQuery(("sleeps",), filters=late))) == ["b.md"]


# ---- what comes after the report ------------------------------------------------------------------------------------


def test_the_command_ends_with_the_merging_of_small_segments(
    devices: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """After its report, and even where it brought nothing new."""
    folder, index = tmp_path / "files", tmp_path / "index"
    for n in range(4):
        builders.ingest(write(folder, {f"{n}.md": f"The marker {n}."}), index, rebuild_rows=0)
    before = read_current(Layout(str(index)))
    assert len(before.segments) == 4
    assert ingest(folder, index, "--bucket", "docs") == 0
    assert f"4 unchanged; 0 new passages, index {before.id}\n" in capsys.readouterr().out
    assert [segment.rows for segment in read_current(Layout(str(index))).segments] == [4]


# ---- where it embeds ------------------------------------------------------------------------------------------------


def test_the_device_of_the_config_reaches_the_embedder(
    devices: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of this process, or of the cluster's actors: then this process only names the model, and needs no GPU."""
    jobs: list[bulk.Job] = []

    @contextmanager
    def here(address: str, job: bulk.Job) -> Iterator[None]:
        jobs.append(job)
        yield None

    monkeypatch.setattr(bulk, "reads", here)
    folder = write(tmp_path / "files", FILES)
    on_gpu = [{"name": name, "ray_actor_options": {"num_gpus": 0.5}} for name in ("Retriever", "Ingester")]
    application = {"name": "assay", "args": {"index": {"embed_device": "cuda"}}, "deployments": on_gpu}
    (tmp_path / "gpu.yaml").write_text(json.dumps({"applications": [application]}))
    config = ("--config", str(tmp_path / "gpu.yaml"))
    assert ingest(folder, tmp_path / "one", *config) == 0
    assert devices == ["cuda"]
    assert ingest(folder, tmp_path / "two", *config, "--ray", "auto", "--password", "sesame") == 0
    assert devices == ["cuda", "cpu"]
    (job,) = jobs
    bulk._Worker(job)
    assert devices == ["cuda", "cpu", "cuda"]
    assert "sesame" not in repr(job)


def test_as_many_actors_as_the_cluster_has_room_for() -> None:
    resources = {"CPU": 8.0, "GPU": 2.0, "memory": 1e9}
    assert bulk.actors_of(resources, "cpu") == 8
    assert bulk.actors_of(resources, "cuda") == 2
    assert bulk.actors_of({"CPU": 1.0, "GPU": 4.0}, "cuda") == 1
    with pytest.raises(SetupError, match="the Ray cluster has no GPU"):
        bulk.actors_of({"CPU": 8.0}, "cuda")


# ---- what a graph does not take -------------------------------------------------------------------------------------


def test_passwords_are_not_sent_to_a_graph(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path / "files", FILES)
    (tmp_path / "keys").write_text("sesame")
    for option, value in (("--password", "sesame"), ("--passwords", str(tmp_path / "keys"))):
        assert ingest(folder, tmp_path / "index", "--url", "http://127.0.0.1:9", option, value) == 2
        assert capsys.readouterr().err.startswith(f"{option} is of an index on this machine")
