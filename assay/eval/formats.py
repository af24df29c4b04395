"""Files of judged collections: BEIR (jsonl and tsv), TREC (SGML, topics, qrels) and SMART. A fault names file and line.

Any of them may be gzipped; a corpus may be a folder of files.
"""

import gzip
import html
import json
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.errors import InvalidRequest

# Query -> document -> grade. Only grades above 0 count as relevant.
Judged = dict[str, dict[str, int]]

_MOST_GRADE = 62  # so that 2^grade - 1 is a whole number for trec_eval, too
_GZIP = b"\x1f\x8b"
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Document:
    id: str
    title: str
    text: str


def documents_of(path: Path) -> list[Document]:
    """BEIR's jsonl (``_id``, ``title``, ``text``), TREC's ``<DOC>``, SMART's ``.I .T .W``, or lines of id, tab, text."""
    found: dict[str, Document] = {}
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    for file in files:
        for line, document in _by_format(file, _CORPORA):
            if document.id in found:
                raise _fault(file, line, f"a second document '{document.id}'")
            found[document.id] = document
    if not found:
        raise InvalidRequest(f"{path}: holds no document")
    return list(found.values())


def queries_of(path: Path) -> dict[str, str]:
    """BEIR's jsonl, TREC's topics (their titles), SMART, or lines of id, tab, text.

    SMART's queries are numbered from 1 as they stand in the file: that is what its judgments count by.
    """
    found: dict[str, str] = {}
    for line, query in _by_format(path, _QUERIES):
        if query.id in found:
            raise _fault(path, line, f"a second query '{query.id}'")
        if not query.text.strip():
            raise _fault(path, line, f"the query '{query.id}' is empty")
        found[query.id] = " ".join(query.text.split())
    if not found:
        raise InvalidRequest(f"{path}: holds no query")
    return found


def judgments_of(path: Path) -> Judged:
    """Query, document and grade, divided by tabs or blanks; with TREC's second column, or BEIR's header."""
    judged: Judged = {}
    for number, line in _lines(path):
        fields = line.split("\t") if line.count("\t") in (2, 3) else line.split()
        if not fields or (number == 1 and [f.casefold() for f in fields] == ["query-id", "corpus-id", "score"]):
            continue
        if len(fields) not in (3, 4):
            raise _fault(
                path, number, f"{len(fields)} columns, but judgments have 3 (query, document, grade) or TREC's 4"
            )
        query, document, grade = fields[0].strip(), fields[-2].strip(), _grade(path, number, fields[-1].strip())
        if judged.setdefault(query, {}).setdefault(document, grade) != grade:
            raise _fault(path, number, f"a second, other grade of '{document}' for the query '{query}'")
    if not judged:
        raise InvalidRequest(f"{path}: holds no judgment")
    return judged


def _grade(path: Path, line: int, said: str) -> int:
    try:
        value = float(said)
        grade = int(value)
    except (ValueError, OverflowError):
        raise _fault(path, line, f"the grade '{said[:40]}' is no number") from None
    if grade != value or abs(grade) > _MOST_GRADE:
        raise _fault(path, line, f"the grade '{said[:40]}' is no whole number from -{_MOST_GRADE} to {_MOST_GRADE}")
    return grade


# ---- formats --------------------------------------------------------------------------------------------------------

_Parts = Iterator[tuple[int, Document]]


def _jsonl(path: Path) -> _Parts:
    for number, line in _lines(path):
        if not line.strip():
            continue
        try:
            row: Any = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as e:
            raise _fault(path, number, f"no JSON ({e})") from None
        if not isinstance(row, dict):
            raise _fault(path, number, "no JSON object")
        name: Any = row.get("_id", row.get("id"))
        said: list[Any] = [str(name) if type(name) is int else name, row.get("title") or "", row.get("text")]
        for key, value in zip(("_id", "title", "text"), said, strict=True):
            if not isinstance(value, str):
                raise _fault(path, number, f"'{key}' must be text")
        # JSON can spell lone surrogates, which nothing could store.
        yield number, Document(*(_SURROGATE.sub("\ufffd", part) for part in said))


def _trec_documents(path: Path) -> _Parts:
    for number, body in _elements(path, "DOC"):
        if not (name := _tag(body, "DOCNO")):
            raise _fault(path, number, "a <DOC> without a <DOCNO>")
        title = _tag(body, "TITLE") or _tag(body, "HEADLINE") or ""
        text = re.sub(r"<DOCNO>.*?</DOCNO>|<(TITLE|HEADLINE)>.*?</\1>", " ", body, flags=re.S | re.I)
        yield number, Document(name, _bare(title), _bare(text))


def _trec_topics(path: Path) -> _Parts:
    for number, body in _elements(path, "top"):
        name = re.search(r"<num>\s*(?:Number:)?\s*([^\s<]+)", body, re.I)
        title = re.search(r"<title>\s*(?:Topic:)?([^<]*)", body, re.I)
        if name is None or title is None:
            raise _fault(path, number, "a <top> without <num> or <title>")
        yield number, Document(name[1], "", html.unescape(title[1]))


def _smart(path: Path) -> _Parts:
    """``.I id`` begins an entry; ``.T`` and ``.W`` are its title and text, other fields are passed over. ``.W`` is the last
    one: what looks like a field after it is text, as Cranfield has it in three documents."""
    for number, entry in _blocks(path, re.compile(r"^\.I[ \t]+(.*?)(?=^\.I\b|\Z)", re.M | re.S)):
        head, mark, text = entry.partition("\n.W\n")
        name, *fields = re.split(r"^\.([A-Z])[ \t]*$", head, flags=re.M)
        if not mark:
            raise _fault(path, number, f"the entry '{name.strip()[:40]}' has no .W")
        title = dict(zip(fields[::2], fields[1::2], strict=True)).get("T", "")
        yield number, Document(name.strip(), title.strip(), text.strip())


def _smart_queries(path: Path) -> _Parts:
    for ordinal, (number, entry) in enumerate(_smart(path), start=1):
        yield number, Document(str(ordinal), "", entry.text)


def _tsv(path: Path) -> _Parts:
    for number, line in _lines(path):
        if not line.strip():
            continue
        name, tab, text = line.partition("\t")
        if not tab or not name.strip():
            raise _fault(path, number, "of no format that is known: BEIR's jsonl, TREC, SMART, or id, tab, text")
        yield number, Document(name.strip(), "", text.strip())


_Format = Callable[[Path], _Parts]
_CORPORA: dict[str, _Format] = {"{": _jsonl, "<DOC": _trec_documents, ".I": _smart}
_QUERIES: dict[str, _Format] = {"{": _jsonl, "<TOP": _trec_topics, ".I": _smart_queries}


def _by_format(path: Path, formats: dict[str, _Format]) -> _Parts:
    start = next((line.strip().upper() for _, line in _lines(path) if line.strip()), "")
    return next((read for mark, read in formats.items() if start.startswith(mark)), _tsv)(path)


def _elements(path: Path, name: str) -> Iterator[tuple[int, str]]:
    """One that is never closed is a fault: a corpus that was cut off would be measured as if it were whole."""
    for number, body in _blocks(path, re.compile(rf"<{name}>(.*?(?:</{name}>|(?=<{name}>)|\Z))", re.S | re.I)):
        end = len(body) - len(f"</{name}>")
        if body[max(0, end) :].casefold() != f"</{name}>".casefold():
            raise _fault(path, number, f"a <{name}> that is never closed")
        yield number, body[:end]


def _blocks(path: Path, pattern: re.Pattern[str]) -> Iterator[tuple[int, str]]:
    """What the pattern's group holds, with the line where it begins. What is between blocks says nothing."""
    text = "\n".join(line for _, line in _lines(path))
    number, place = 1, 0
    for block in pattern.finditer(text):
        number, place = number + text.count("\n", place, block.start()), block.start()
        yield number, block[1]


def _tag(body: str, name: str) -> str | None:
    found = re.search(rf"<{name}>(.*?)</{name}>", body, re.S | re.I)
    return found[1].strip() if found else None


def _bare(text: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]{0,200}>", " ", text)).split())


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    number = 0
    try:
        with path.open("rb") as raw, gzip.open(raw) if raw.peek(2)[:2] == _GZIP else raw as file:
            for number, line in enumerate(file, start=1):
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
    except (EOFError, zlib.error, gzip.BadGzipFile) as e:
        raise _fault(path, number + 1, f"the gzip file is damaged ({e})") from None
    except OSError as e:
        raise InvalidRequest(f"{path}: cannot be read ({e.strerror})") from None
    except UnicodeDecodeError:
        raise _fault(path, number, "not UTF-8") from None


def _fault(path: Path, line: int, message: str) -> InvalidRequest:
    return InvalidRequest(f"{path}:{line}: {message}")
