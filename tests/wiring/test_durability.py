"""Killed at any step, an index is the old one or the new one, whole; a second run ends what the first began."""

import os
import shutil
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from assay.documents.names import doc_id_of
from assay.errors import NotFound, UnknownField
from assay.index.files import Layout
from assay.index.mirror import compact
from assay.index.remove import remove
from assay.index.snapshot import read_current
from assay.retrieve import LocalRetriever
from assay.schemas import Predicate
from assay.types import Leg, SearchQuery
from tests.wiring.failpoints import describe
from tests.wiring.index.builders import found, ingest, retriever, search, text_of, write

ROOT = Path(__file__).parents[2]
OLD = {f"doc{i}.md": f"# Doc {i}\n\nThe marker old{i} lion sleeps.\n" for i in range(8)}
CHANGE = {
    "doc0.md": "# Doc 0\n\nThe marker new0 lion wakes.\n",
    **{f"more{i}.md": f"# More {i}\n\nThe marker more{i} zebra runs.\n" for i in range(4)},
}
NEW = {**OLD, **CHANGE}
QUERIES = ("lion", "zebra runs", "marker", "the old3 sleeps", "wakes")
# Legs that are built anew for all chunks, and a segment of its own for the new ones.
REBUILD_ROWS = (20_000, 0)
Ranked = list[list[tuple[str, float]]]
# By the rows up to which legs are built anew: the steps of a run that nothing interrupts, and what its index ranks.
Whole = Callable[[int], tuple[list[str], Ranked]]


def copied(index: Path, to: Path) -> None:
    """As if it had been written a minute ago: how many files are put on disk anew hangs on how fresh they are."""
    shutil.copytree(index, to)
    for path in to.rglob("*"):
        os.utime(path, (time.time() - 60,) * 2)


def marker(text: str) -> str:
    return text.split("marker ")[1].split()[0]


def killed_at(folder: Path, index: Path | str, rebuild_rows: int, step: int | str, what: str = "ingest") -> list[str]:
    """The steps that an ingest (or another work) took, to its end or to the one it died at: its number, or the name of the
    first one of that name."""
    command = [sys.executable, "-m", "tests.wiring.failpoints", what, str(folder), str(index)]
    command += [str(rebuild_rows), str(step)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == (-9 if step else 0), run.stderr
    return run.stdout.splitlines()


def holds(r: LocalRetriever, files: Mapping[str, str]) -> None:
    """All of the files by id and by both legs, and nothing else."""
    assert r.reasons == ()
    legs: tuple[Leg, ...] = ("dense", "sparse")
    for leg in legs:
        hits = search(r, SearchQuery(("marker",), top_k=100, legs=(leg,))).hits
        assert len(hits) == len(files), "one text of each: an old one beside the new one is one too many"
        assert {hit.chunk.uri: hit.chunk.text for hit in hits} == {
            uri: text.split("\n\n")[1].strip() for uri, text in files.items()
        }
        for uri, text in files.items():
            best = search(r, SearchQuery((marker(text),), legs=(leg,))).hits[0]
            assert best.chunk.uri == uri
            document = text_of(r, best.chunk.doc_id)
            assert document[best.chunk.start : best.chunk.end] == best.chunk.text


def ranked(index: Path) -> Ranked:
    r = retriever(index)
    results = [search(r, SearchQuery((query,), top_k=100)) for query in QUERIES]
    return [[(hit.chunk.uri, round(hit.score, 5)) for hit in result.hits] for result in results]


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("before")
    ingest(write(folder / "files", OLD), folder / "index")
    write(folder / "files", CHANGE)
    return folder


def whole_run(before: Path, what: str) -> Whole:
    def run(rows: int) -> tuple[list[str], Ranked]:
        index = before / f"{what}{rows}"
        copied(before / "index", index)
        return killed_at(before / "files", index, rows, 0, what), ranked(index)

    return cache(run)


@pytest.fixture(scope="module")
def whole(before: Path) -> Whole:
    return whole_run(before, "ingest")


class Kill(NamedTuple):
    """At a step of this name: the first of them (0), the last (1), or that far between."""

    step: str
    place: float = 0
    published: bool = False
    """Whether ``CURRENT`` has been replaced by then."""

    def among(self, steps: Sequence[str]) -> int:
        """Its number, from 1."""
        same = [i for i, step in enumerate(steps, start=1) if step.startswith(self.step)]
        assert same, f"nothing does '{self.step}' any more"
        return same[round(self.place * (len(same) - 1))]


INGESTION = (
    Kill("after DirectParser.parse", 0.5),
    Kill("after WordEncoder.embed_now"),
    Kill("after LanceDataset.delete"),
    Kill("after lance.write_dataset"),
    Kill("after lance.write_dataset", 1),
    Kill("before os.fsync"),
    Kill("before os.replace state.json"),
    Kill("after os.replace state.json"),
    Kill("before assay.index.dense.build"),
    Kill("after assay.index.dense.build"),
    Kill("after assay.index.sparse.build"),
    Kill("before os.fsync", 0.6),
    Kill("before Path.rename"),
    Kill("after Path.rename"),
    Kill("before shutil.rmtree"),
    Kill("before os.replace snapshots"),
    Kill("before os.replace CURRENT"),
    Kill("after os.replace CURRENT", published=True),
    Kill("before os.fsync", 1, published=True),
    Kill("after LanceDataset.cleanup_old_versions", published=True),
    Kill("acknowledged", published=True),
)


def are_of_every_kind(kills: Sequence[Kill], steps: Sequence[str]) -> None:
    """Each kind of step that a run takes is killed at least once, and kills fall on both sides of the publishing."""

    def kinds(names: Sequence[str]) -> set[str]:
        return {"acknowledged" if name.startswith("acknowledged") else name.partition(" ")[2] for name in names}

    assert kinds(steps) == kinds([kill.step for kill in kills])
    at = steps.index("after os.replace CURRENT") + 1
    assert steps.count("after os.replace CURRENT") == 1
    assert [kill.published for kill in kills] == [kill.among(steps) >= at for kill in kills]
    assert {kill.published for kill in kills} == {True, False}


@pytest.mark.parametrize("rows", REBUILD_ROWS)
def test_kills_are_of_every_kind_of_step(whole: Whole, rows: int) -> None:
    are_of_every_kind(INGESTION, whole(rows)[0])


# Each way of building meets every second kind.
@pytest.mark.parametrize(("rows", "kill"), [(REBUILD_ROWS[i % 2], kill) for i, kill in enumerate(INGESTION)])
def test_killed_at_any_step(before: Path, whole: Whole, rows: int, kill: Kill, tmp_path: Path) -> None:
    steps, expected = whole(rows)
    index = tmp_path / "index"
    copied(before / "index", index)
    taken = killed_at(before / "files", index, rows, kill.among(steps))
    assert taken[-1].startswith(kill.step), "it died where it was told to"

    holds(retriever(index), NEW if kill.published else OLD)
    ingest(before / "files", index, rebuild_rows=rows)
    holds(retriever(index), NEW)
    assert ranked(index) == expected, f"killed at {taken[-1]}, the index ranks otherwise than one that was not"
    version = read_current(Layout(str(index))).id
    again = ingest(before / "files", index, rebuild_rows=rows)
    assert again.count("unchanged") == len(NEW) and again.index_version == version


def test_an_acknowledged_version_is_there_after_a_restart(before: Path, whole: Whole, tmp_path: Path) -> None:
    """Killed right after the acknowledgement: a new process finds the same, ranked the same."""
    index = tmp_path / "index"
    copied(before / "index", index)
    taken = killed_at(before / "files", index, 0, len(whole(0)[0]))
    assert taken[-1].startswith("acknowledged")
    holds(retriever(index), NEW)
    assert read_current(Layout(str(index))).id == taken[-1].split()[1]
    code = (
        "import sys; from pathlib import Path; from tests.wiring.test_durability import ranked;"
        "print(ranked(Path(sys.argv[1])))"
    )
    command = [sys.executable, "-c", code, str(index)]
    elsewhere = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert elsewhere.stdout.strip() == str(ranked(index))


# ---- an index that is begun, and one that gets a schema -------------------------------------------------------------

BUILT, HIDDEN = REBUILD_ROWS

BEGINNING = (
    Kill("after lance.write_dataset"),  # the store has one of its two datasets
    Kill("before os.replace state.json"),
    Kill("after os.replace state.json"),
    Kill("after lance.write_dataset", 1),
    Kill("after os.replace state.json", 1),
    Kill("before os.replace CURRENT"),
    Kill("after os.replace CURRENT", published=True),
)


@pytest.fixture(scope="module")
def beginning(before: Path) -> tuple[list[str], Ranked]:
    return killed_at(before / "files", before / "begun", BUILT, 0), ranked(before / "begun")


@pytest.mark.parametrize("kill", BEGINNING)
def test_a_first_ingestion_that_was_killed_is_gone_on_with(
    before: Path, beginning: tuple[list[str], Ranked], kill: Kill, tmp_path: Path
) -> None:
    steps, expected = beginning
    index = tmp_path / "index"
    taken = killed_at(before / "files", index, BUILT, kill.among(steps))
    assert taken[-1].startswith(kill.step), "it died where it was told to"
    if kill.published:
        holds(retriever(index), NEW)
    else:
        assert retriever(index).index_version is None
    ingest(before / "files", index)
    holds(retriever(index), NEW)
    assert ranked(index) == expected, f"killed at {taken[-1]}, the index ranks otherwise than one that was not"
    assert ingest(before / "files", index).count("unchanged") == len(NEW)


DESCRIPTION = (
    Kill("after LanceDataset.add_columns"),
    Kill("after LanceDataset.delete"),
    Kill("after os.replace state.json"),  # the schema is in force, and the metadata is not
    Kill("after LanceDataset.delete", 1),
    Kill("before os.replace CURRENT"),
    Kill("after os.replace CURRENT", published=True),
)


def by_place(index: Path) -> list[list[str]]:
    filters = [Predicate(field="place", op="=", value=n) for n in range(len(OLD))]
    return [found(search(retriever(index), SearchQuery(("marker",), filters=f))) for f in filters]


def chunks(index: Path) -> set[int]:
    return {hit.chunk.id for hit in search(retriever(index), SearchQuery(("marker",), top_k=100)).hits}


@pytest.fixture(scope="module")
def description(before: Path) -> list[str]:
    copied(before / "index", before / "described")
    return killed_at(write(before / "old", OLD), before / "described", BUILT, 0, "describe")


@pytest.mark.parametrize("kill", DESCRIPTION)
def test_a_schema_and_metadata_that_were_killed_are_all_there_or_not_and_can_be_repeated(
    before: Path, description: list[str], kill: Kill, tmp_path: Path
) -> None:
    index = tmp_path / "index"
    copied(before / "index", index)
    stored = chunks(index)
    taken = killed_at(before / "old", index, BUILT, kill.among(description), "describe")
    assert taken[-1].startswith(kill.step), "it died where it was told to"
    holds(retriever(index), OLD)
    if not kill.published:
        with pytest.raises(UnknownField):
            by_place(index)
    describe(Layout(str(index)), before / "old", BUILT)
    assert by_place(index) == [[uri] for uri in sorted(OLD)]
    holds(retriever(index), OLD)
    assert chunks(index) == stored, "nothing was ingested anew"


# ---- deletion and compaction --------------------------------------------------------------------------------------------

FIRST = min(OLD)
# One word for each direction of the encoder's, so that the dense leg can tell them apart.
WORDS = {zlib.crc32(word.encode()) % 1024: word for word in (f"old{i}" for i in range(40))}
MANY = {f"{word}.md": f"# Doc\n\nThe marker {word} lion sleeps.\n" for word in sorted(WORDS.values())[:26]}
LEFT = {uri: text for uri, text in OLD.items() if uri != FIRST}
Run = tuple[Path, list[str], Ranked]


@pytest.fixture(scope="module")
def deletion(before: Path) -> Whole:
    return whole_run(before, "delete")


DELETION = {
    BUILT: (
        Kill("after LanceDataset.delete"),
        Kill("before assay.index.dense.build"),
        Kill("after assay.index.sparse.build"),
        Kill("before Path.rename"),
        Kill("before shutil.rmtree"),
        Kill("after os.replace CURRENT", published=True),
    ),
    HIDDEN: (
        Kill("before os.fsync", 0.5),
        Kill("after os.replace state.json"),
        Kill("before os.replace snapshots"),
        Kill("before os.replace CURRENT"),
        Kill("after LanceDataset.cleanup_old_versions", published=True),
        Kill("acknowledged", published=True),
    ),
}


def test_kills_of_a_deletion_are_of_every_kind(deletion: Whole) -> None:
    are_of_every_kind([kill for kills in DELETION.values() for kill in kills], deletion(BUILT)[0])


@pytest.mark.parametrize(
    ("rows", "kill", "by_id"),
    [(rows, kill, i % 2 == 0) for rows, kills in DELETION.items() for i, kill in enumerate(kills)],
)
def test_a_deletion_that_was_killed_is_whole_or_not_begun_and_can_be_repeated(
    before: Path, deletion: Whole, rows: int, kill: Kill, by_id: bool, tmp_path: Path
) -> None:
    steps, expected = deletion(rows)
    index = tmp_path / "index"
    copied(before / "index", index)
    taken = killed_at(before / "files", index, rows, kill.among(steps), "delete")
    assert taken[-1].startswith(kill.step), "it died where it was told to"
    holds(retriever(index), LEFT if kill.published else OLD)
    name = doc_id_of("docs", FIRST) if by_id else FIRST
    if kill.published:
        with pytest.raises(NotFound):
            remove(Layout(str(index)), "docs", [name], rows)
    else:
        remove(Layout(str(index)), "docs", [name], rows)
    holds(retriever(index), LEFT)
    assert ranked(index) == expected, f"killed at {taken[-1]}, the index ranks otherwise than one that was not"


@pytest.fixture(scope="module")
def compaction(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Of as many small segments and fragments as documents, and of a passage that is dead."""
    folder = tmp_path_factory.mktemp("many")
    layout = Layout(str(folder / "index"))
    for number, (uri, text) in enumerate(MANY.items()):
        more = {"gone.md": "The marker gone lion."} if not number else {}
        ingest(write(folder / f"files{number}", {uri: text, **more}), folder / "index", rebuild_rows=0)
        if number == 5:
            compact(layout)  # its segments of before are there still, for the next one to sweep
    remove(layout, "docs", ["gone.md"], 0)
    index = folder / "whole"
    copied(folder / "index", index)
    steps = killed_at(folder, index, 0, 0, "compact")
    assert {"after DatasetOptimizer.compact_files", "after LanceDataset.cleanup_old_versions"} <= set(steps)
    assert "after shutil.rmtree" in steps[steps.index("after os.replace CURRENT") :], "old segments were swept"
    return folder / "index", steps, ranked(index)


COMPACTION = (
    Kill("after DatasetOptimizer.compact_files"),
    Kill("before os.fsync", 0.3),
    Kill("after os.replace state.json"),
    Kill("before assay.index.dense.build"),
    Kill("after assay.index.sparse.build"),
    Kill("before Path.rename"),
    Kill("before os.replace snapshots"),
    Kill("before os.replace CURRENT"),
    Kill("after shutil.rmtree", 0.5, published=True),
    Kill("after LanceDataset.cleanup_old_versions", published=True),
    Kill("acknowledged", published=True),
)


def test_kills_of_a_compaction_are_of_every_kind(compaction: Run) -> None:
    are_of_every_kind(COMPACTION, compaction[1])


@pytest.mark.parametrize("kill", COMPACTION)
def test_a_compaction_that_was_killed_changes_nothing_that_is_found(
    compaction: Run, kill: Kill, tmp_path: Path
) -> None:
    origin, steps, expected = compaction
    index = tmp_path / "index"
    copied(origin, index)
    before = ranked(index)
    taken = killed_at(tmp_path, index, 0, kill.among(steps), "compact")
    assert taken[-1].startswith(kill.step), "it died where it was told to"
    holds(retriever(index), MANY)
    assert ranked(index) == (expected if kill.published else before), taken[-1]
    layout = Layout(str(index))
    compact(layout)
    holds(retriever(index), MANY)
    assert ranked(index) == expected, f"killed at {taken[-1]}, the index ranks otherwise than one that was not"
    assert len(read_current(layout).segments) == 1
    assert compact(layout) == read_current(layout), "nothing is left to do"
    assert ingest(origin.parent / "files1", index, rebuild_rows=0).count("unchanged") == 1


FULL = """
import resource, signal, sys
from pathlib import Path
from tests.wiring.index.builders import ingest
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))
ingest(Path(sys.argv[1]), Path(sys.argv[2]), rebuild_rows=int(sys.argv[4]))
"""


# The last one lets the store pass, and not the vectors of a segment of all passages.
@pytest.mark.parametrize(("limit", "rebuild_rows"), [(0, 0), (700, 0), (3_000, 0), (20_000, 2_000)])
def test_a_full_disk_leaves_the_old_index_and_works_again_after(
    before: Path, limit: int, rebuild_rows: int, tmp_path: Path
) -> None:
    """Files that cannot grow beyond the limit: a write fails midway, in whatever is written, as it does on a full disk. The
    system says EFBIG here, and ENOSPC there."""
    index = tmp_path / "index"
    copied(before / "index", index)
    whole = set((index / "segments").iterdir())
    command = [sys.executable, "-c", FULL, str(before / "files"), str(index), str(limit), str(rebuild_rows)]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 1, (run.returncode, run.stderr[-500:])
    holds(retriever(index), OLD)
    assert set((index / "segments").iterdir()) == whole, "no half segment"
    ingest(before / "files", index, rebuild_rows=0)
    holds(retriever(index), NEW)


def test_a_second_writer_does_no_harm(before: Path, tmp_path: Path) -> None:
    """Two processes at once: one is refused at once by name, the other's work is whole."""
    index = tmp_path / "index"
    copied(before / "index", index)
    code = "import sys; from pathlib import Path; from tests.wiring.index.builders import ingest;"
    code += "print(ingest(Path(sys.argv[1]), Path(sys.argv[2])).index_version)"
    command = [sys.executable, "-c", code, str(before / "files"), str(index)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Layout(str(index)).writer():
        refused = subprocess.run(command, cwd=ROOT, text=True, check=False, **pipes)  # type: ignore[call-overload]
    assert refused.returncode == 1 and "another process is writing" in refused.stderr
    runs = [subprocess.Popen(command, cwd=ROOT, text=True, **pipes) for _ in range(3)]  # type: ignore[call-overload]
    ended = [(run.communicate(), run.returncode) for run in runs]
    assert all(code == 0 or "another process is writing" in err for (_, err), code in ended), ended
    assert any(code == 0 for _, code in ended)
    holds(retriever(index), NEW)
