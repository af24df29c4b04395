"""Collections with long documents, for ``bench.long_documents``, and what is asked of them.

CUAD's contracts, each a document of some tens of passages. The same bound by type into volumes of hundreds of passages, as an
archive binds them, but for every third one, which stays on its own. And KServe's pages, of which one, the reference of its
API, has hundreds. The right passages are known by where they lie: a clause in its contract's part of a volume, a field in
its kind's section. A short page is asked for by the description in its front matter, which is in no passage.
"""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from assay.types import Chunk
from bench.contracts import Question, parties, questions, spans_of

LONG = 20  # passages: contracts with less are searched among, and not asked about
VOLUME_CHARS = 220_000  # some 300 passages
APART = 3
FIELDS = 400  # of the reference, evenly taken
_KIND = re.compile(r"^#### (\w+)\n", re.MULTILINE)
_FIELD = re.compile(r'<ApiField\s+name="(\w+)".*?/>', re.DOTALL)
_FRONT = re.compile(r"\A---\n(.*?)^---$", re.DOTALL | re.MULTILINE)
_DESCRIPTION = re.compile(r"^description: *[\"']?(.+?)[\"']? *$", re.MULTILINE)

Span = tuple[int, int]
Parts = dict[str, tuple[str, Span]]
"""Contract -> its file, and the characters that it has there."""
Held = Mapping[str, tuple[str, Sequence[Chunk]]]
"""Of a file in the index: its text and its passages."""


@dataclass(frozen=True, slots=True)
class Asked:
    """``ids``: the right passages. ``kind``: the questions that it is measured with. ``whole``: any passage of the document
    will do, so that its first one counts."""

    text: str
    ids: tuple[int, ...]
    kind: str
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Collection:
    """The files under ``folder``, and what is asked of them once they are passages."""

    folder: Path
    ask: Callable[[Held], list[Asked]]


def collections(data: Path, folder: Path) -> dict[str, Callable[[], Collection]]:
    """By the names that the rows have. Files that are written stand in ``folder``."""
    cuad = (data / "contracts" / "cuad").resolve()
    return {
        "by number": lambda: _single(cuad, folder / "numbered", numbered=True),
        "by name": lambda: _single(cuad, cuad / "txt", numbered=False),
        "volumes": lambda: _bound(cuad, folder / "volumes", contents=False),
        "volumes with a contents page": lambda: _bound(cuad, folder / "contents", contents=True),
        "pages": lambda: Collection((data / "markdown" / "kserve_docs").resolve(), _of_pages),
    }


def _single(cuad: Path, folder: Path, *, numbered: bool) -> Collection:
    """Each contract under its file's name, in which its company stands, or under a number, as scans are called."""
    files = sorted((cuad / "txt").iterdir())
    parts: Parts = {}
    for number, file in enumerate(files):
        text, name = file.read_text("utf-8"), f"contract-{number:03}.txt" if numbered else file.name
        parts[file.name] = name, (0, len(text))
        if numbered:
            _write(folder / name, text)

    def ask(held: Held) -> list[Asked]:
        long = [q for q in questions(cuad) if len(held[parts[q.contract][0]][1]) >= LONG]
        return _clauses(long, parts, held, lambda _: "clauses")

    return Collection(folder, ask)


def _bound(cuad: Path, folder: Path, *, contents: bool) -> Collection:
    """``contents``: a volume begins with a page that names its contracts and their parties, and not with the first contract."""
    manifest = sorted(
        json.loads((cuad / "manifest.json").read_text()), key=lambda item: (item["category"], item["txt"])
    )
    texts = {Path(item["txt"]).name: (cuad / item["txt"]).read_text("utf-8") for item in manifest}
    parts: Parts = {}
    volumes: list[list[str]] = [[]]
    for number, (name, text) in enumerate(texts.items()):
        if number % APART == 0:
            parts[name] = f"contract-{number:03}.txt", (0, len(text))
            _write(folder / parts[name][0], text)
            continue
        if sum(len(texts[other]) for other in volumes[-1]) > VOLUME_CHARS:
            volumes.append([])
        volumes[-1].append(name)
    called = parties(cuad)
    for number, volume in enumerate(volumes, 1):
        lines = [f"{place}. {called.get(name, 'an agreement')}" for place, name in enumerate(volume, 1)]
        written = "\n".join([f"Volume {number}", "", "Contents", "", *lines, "", ""]) if contents else ""
        for name in volume:
            parts[name] = f"volume-{number}.txt", (len(written), len(written) + len(texts[name]))
            written += f"{texts[name]}\n\n"
        _write(folder / f"volume-{number}.txt", written)

    def kind(file: str) -> str:
        return "clauses in volumes" if file.startswith("volume") else "clauses of the others"

    return Collection(folder, lambda held: _clauses(questions(cuad), parts, held, kind))


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, "utf-8", newline="")


def _clauses(asked: Iterable[Question], parts: Parts, held: Held, kind: Callable[[str], str]) -> list[Asked]:
    found = []
    for question in asked:
        file, (start, end) = parts[question.contract]
        text, chunks = held[file]
        spans = [(start + first, start + last) for first, last in spans_of(question, text[start:end])]
        found.append(Asked(question.text, _over(spans, chunks), kind(file)))
    return found


def _over(spans: Sequence[Span], chunks: Iterable[Chunk]) -> tuple[int, ...]:
    """The passages that some of these characters stand in."""
    return tuple(c.id for c in chunks if any(c.start < end and start < c.end for start, end in spans))


def _of_pages(held: Held) -> list[Asked]:
    longest = max(held, key=lambda name: len(held[name][1]))
    return _fields(*held[longest]) + _described({name: of for name, of in held.items() if name != longest})


def _fields(text: str, chunks: Sequence[Chunk]) -> list[Asked]:
    """Where no other kind of that name has one."""
    places: dict[tuple[str, str], list[Span]] = defaultdict(list)
    heads = [*_KIND.finditer(text)]
    for head, end in zip(heads, [*(head.start() for head in heads[1:]), len(text)], strict=True):
        for field in _FIELD.finditer(text, head.end(), end):
            places[head.group(1), field.group(1)].append(field.span())
    once = [(*named, spans) for named, spans in places.items() if len(spans) == 1]
    some = [once[at * len(once) // FIELDS] for at in range(FIELDS)] if len(once) > FIELDS else once
    kind = "fields in the reference"
    return [Asked(f"What is the field {field} of {of}?", _over(spans, chunks), kind) for of, field, spans in some]


def _described(held: Held) -> list[Asked]:
    fronts = {name: front.group(1) for name, (text, _) in held.items() if (front := _FRONT.match(text))}
    said = {name: found.group(1) for name, front in fronts.items() if (found := _DESCRIPTION.search(front))}
    only = {name: text for name, text in said.items() if [*said.values()].count(text) == 1}
    return [Asked(text, tuple(c.id for c in held[name][1]), "short pages", whole=True) for name, text in only.items()]
