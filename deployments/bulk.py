"""Ingestion on many machines: files are parsed, divided and embedded by a pool of Ray actors, and one writer stores them.

``reads`` is a way of reading for ``assay.index.ingest.Ingestion``: the code for a file, the commits, the report and the
resuming are those of a run on one machine. The files must lie at the same paths on every machine.
"""

import logging
import math
import pickle
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import ray
import ray.data
from ray.exceptions import AuthenticationError, RayError

from assay.documents.names import doc_id_of
from assay.errors import SetupError
from assay.index.embed import SentenceEmbedder
from assay.index.files import Layout
from assay.index.ingest import Ingestion, Read, Reads, Row, Source
from assay.index.parse.parser import Limits, Parser
from assay.models import resolve_model

_FILES = 8  # that an actor takes at a time: their passages are embedded together
_MOST_BLOCKS = 5_000
_MOST_SAID = 300  # characters of what Ray says of a fault
_STORE_BYTES = 512 * 2**20  # of a Ray that is started here: a few batches of texts and vectors


@dataclass(frozen=True, slots=True)
class Job:
    """What an actor needs to know. ``passwords`` travel inside Ray's own channels, and are not logged."""

    bucket: str
    embedder: str
    cache: Path
    limits: Limits
    passwords: tuple[str, ...]
    device: Literal["cpu", "cuda"] = "cpu"

    def __repr__(self) -> str:
        return f"Job({self.bucket!r}, {self.embedder!r})"


@contextmanager
def reads(address: str, job: Job) -> Iterator[Reads]:
    """``address``: "local" starts a Ray on this machine for the run, "auto" finds one, else where the cluster is.

    Raises ``SetupError`` where there is none, and from the reads where the cluster fails in a run: what is stored by then
    stays, and the same command goes on.
    """
    local = address == "local"
    started: dict[str, Any] = {"include_dashboard": False, "object_store_memory": _STORE_BYTES} if local else {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of Lance, which is imported here, about the processes of Ray
            ray.init(address=address, log_to_driver=False, logging_level="ERROR", **started)
    except (ConnectionError, RayError, ValueError, RuntimeError) as e:
        raise SetupError(f"{_no_cluster(address)}: {_why(e)}", "ray") from None
    try:
        yield lambda sources, known: _read(job, sources, known)
    finally:
        ray.shutdown()


def _no_cluster(address: str) -> str:
    if address == "local":
        return "no Ray could be started on this machine"
    return f"there is no Ray cluster at '{address}' that can be used ('local' starts one)"


def _why(fault: Exception) -> str:
    """In one line: what Ray says of it may have a whole traceback in it."""
    said = str(fault)
    if isinstance(fault, AuthenticationError) or "AuthenticationError" in said or "InvalidAuthToken" in said:
        return "its token and this command's are not the same (see RAY_AUTH_MODE and RAY_AUTH_TOKEN)"
    lines = [line.strip() for line in said.splitlines()]
    return next((line[:_MOST_SAID] for line in lines if line), type(fault).__name__)


def _read(job: Job, sources: Sequence[Source], known: Mapping[str, str]) -> Iterator[Read | Row]:
    if not sources:
        return
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False  # the run has its own
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    actors = actors_of(ray.cluster_resources(), job.device)
    blocks = min(_MOST_BLOCKS, math.ceil(len(sources) / _FILES))
    held = [(source, known.get(doc_id_of(job.bucket, source.uri))) for source in sources]
    files = ray.data.from_items([{"file": pickle.dumps(item)} for item in held], override_num_blocks=blocks)
    done = files.map_batches(
        _Worker,
        fn_constructor_args=(job,),
        batch_size=_FILES,
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=min(actors, blocks)),
        num_gpus=1 if job.device == "cuda" else None,  # Ray hides GPUs from whoever asks for none; one CPU each anyhow
    )
    try:
        for row in done.iter_rows():
            yield pickle.loads(row["read"])  # noqa: S301 - made by our own actors
    except RayError as e:
        raise SetupError(f"the cluster failed ({type(e).__name__}): {str(e).strip().splitlines()[-1]}", "ray") from e


def actors_of(resources: Mapping[str, float], device: Literal["cpu", "cuda"]) -> int:
    """How many a cluster has room for. Raises ``SetupError`` where it has no GPU and needs one: Ray would wait for it."""
    cpus, gpus = (int(resources.get(name, 0)) for name in ("CPU", "GPU"))
    if device == "cuda" and not gpus:
        raise SetupError("index.embed_device is 'cuda', and the Ray cluster has no GPU", "index.embed_device")
    return max(1, min(cpus, gpus) if device == "cuda" else cpus)


class _Worker:
    """One actor: a parsing child and an embedder of its own."""

    def __init__(self, job: Job) -> None:
        encoder = SentenceEmbedder(resolve_model(job.embedder, job.cache), job.device)
        parser = Parser(job.limits, job.passwords)
        self._run = Ingestion(Layout("unused"), job.bucket, (), encoder, encoder.embed_now, parser)

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[bytes]]:
        found = [self._one(*pickle.loads(item)) for item in batch["file"]]  # noqa: S301
        reads = iter(self._run.embedded([read for read in found if isinstance(read, Read)]))
        return {"read": [pickle.dumps(read if isinstance(read, Row) else next(reads)) for read in found]}

    def _one(self, source: Source, known: str | None) -> Read | Row:
        return self._run.read(source, {} if known is None else {doc_id_of(self._run.report.bucket, source.uri): known})
