"""What is said of a file from outside of it: a sidecar beside it, a row of a table, the shape of its path.

Where several say a field, the most deliberate counts: the file itself is weakest, then its path, the table, the sidecar.
"""

import csv
import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from assay import groups
from assay.errors import ParseFault, SetupError
from assay.index.parse.parsed import Raw
from assay.index.parse.parser import Parser

_SIDECAR_BYTES = 1_000_000
_MOST_KEYS = 200
_KEY_COLUMNS = ("path", "file", "filename", "uri", "name")
_HOLE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_.-]*)\}")


class Pattern:
    """``{type}/{name}.pdf``: a hole is part of one folder's or file's name, ``*`` too; it must match the end of a path."""

    def __init__(self, pattern: str) -> None:
        """Raises ``SetupError`` where there is nothing to fill in, or one name twice."""
        self._names = _HOLE.findall(pattern)
        if not self._names or len(set(self._names)) != len(self._names) or "{" in _HOLE.sub("", pattern):
            raise SetupError(
                f"the path pattern '{pattern}' is none; write it like {{type}}/{{name}}.pdf", "path_pattern"
            )
        parts = _HOLE.split(pattern.strip("/"))
        plain = [re.escape(part).replace(r"\*", "[^/]*") for part in parts[::2]]
        self._match = re.compile("(?:.*/)?" + "([^/]+)".join(plain), re.DOTALL | re.IGNORECASE).fullmatch

    def __call__(self, uri: str) -> dict[str, Raw]:
        found = self._match(uri)
        return dict(zip(self._names, found.groups(), strict=True)) if found else {}


class MetadataRows:
    """Metadata by files' names in the index, one level of nesting as ``outer.inner``. ``unused``: rows that no file took."""

    def __init__(self, rows: Mapping[str, Mapping[str, Any]]) -> None:
        self._rows = {name: _flat(row) for name, row in rows.items()}
        self.unused = set(self._rows)

    def __call__(self, uri: str, path: Path) -> dict[str, Raw]:
        return self._row(uri)

    def _row(self, name: str | None) -> dict[str, Raw]:
        if name is None or name not in self._rows:
            return {}
        self.unused.discard(name)
        return self._rows[name]


class MetadataTable(MetadataRows):
    """A CSV with a row per file: the column path, file, filename, uri or name (or else the first) says which."""

    def __init__(self, path: Path) -> None:
        """Raises ``SetupError``: not readable as UTF-8 CSV, a row that is longer than the head, one file in two rows."""
        super().__init__({})
        self._folder = Path(os.path.realpath(path)).parent
        try:
            with path.open(newline="", encoding="utf-8-sig") as file:
                self._read(path, csv.DictReader(file, strict=True))
        except (OSError, UnicodeDecodeError, csv.Error) as e:
            said = e.strerror if isinstance(e, OSError) else e
            raise SetupError(f"the table {path} cannot be read: {said}", "metadata") from None

    def _read(self, path: Path, rows: "csv.DictReader[str]") -> None:
        heads = [head for head in rows.fieldnames or () if head]
        if not heads:
            raise SetupError(f"the table {path} has no head", "metadata")
        key = next((head for wanted in _KEY_COLUMNS for head in heads if head.lower() == wanted), heads[0])
        for row in rows:
            if None in row:
                raise SetupError(f"line {rows.line_num} of {path} has more cells than the head", "metadata")
            name = (row[key] or "").strip().removeprefix("./")
            if name in self._rows:
                raise SetupError(f"'{name}' has two rows in {path} (line {rows.line_num})", "metadata")
            if name:
                self._rows[name] = {head: v.strip() for head in heads if head != key and (v := row[head]) and v.strip()}
        self.unused = set(self._rows)

    def __call__(self, uri: str, path: Path) -> dict[str, Raw]:
        """By the file's name in the index, its path from the table's folder, or its bare name."""
        near = path.relative_to(self._folder).as_posix() if path.is_relative_to(self._folder) else uri
        return self._row(next((name for name in (uri, near, path.name) if name in self._rows), None))


class Given:
    """All that is said from outside, merged. ``sidecars``: the JSON files that are metadata, and of which file."""

    def __init__(
        self, paths: Sequence[Path], table: MetadataRows | None = None, patterns: Sequence[Pattern] = ()
    ) -> None:
        """``paths``: of all files of the run."""
        self._table, self._patterns = table, patterns
        names, stems = set(paths), dict[Path, list[Path]]()
        for path in paths:
            if path.suffix.lower() != ".json":
                stems.setdefault(path.with_suffix(""), []).append(path)
        self.sidecars: dict[Path, Path] = {}
        for path in (path for path in paths if path.suffix.lower() == ".json"):
            bare = path.with_suffix("")
            owners = [bare] if bare in names else stems.get(bare, [])
            if len(owners) == 1:
                self.sidecars[path] = owners[0]
        # x.pdf.json counts before x.json, where a file has both.
        exact_last = sorted(self.sidecars.items(), key=lambda item: item[0].with_suffix("") == item[1])
        self._sidecar = {owner: path for path, owner in exact_last}

    @property
    def unused_rows(self) -> Sequence[str]:
        """Rows of the table that no file of the run has."""
        return sorted(self._table.unused) if self._table else ()

    def of(self, uri: str, path: Path) -> dict[str, Raw]:
        """Raises ``ParseFault`` with the reason "metadata" where the sidecar is none."""
        found: dict[str, Raw] = {}
        for pattern in self._patterns:
            found.update(pattern(uri))
        if self._table:
            found.update(self._table(uri, path))
        if path in self._sidecar:
            found.update(_sidecar(self._sidecar[path]))
        return found


def survey(files: Iterable[tuple[str, Path]], given: Given, parser: Parser) -> tuple[list[dict[str, Raw]], list[str]]:
    """The merged metadata of files (uri, path) that can be read, and why the others cannot."""
    found, faults = [], []
    for uri, path in files:
        if path in given.sidecars:
            continue
        try:
            said = given.of(uri, path)
            found.append({**parser.parse(parser.read(path), path.name).metadata, **said})
        except ParseFault as e:
            faults.append(f"{uri}: {e.message}")
    return found, faults


def _sidecar(path: Path) -> dict[str, Raw]:
    """Scalars and lists of scalars by their names, one level of nesting as ``outer.inner``."""
    try:
        with path.open("rb") as file:
            data = file.read(_SIDECAR_BYTES + 1)
        if len(data) > _SIDECAR_BYTES:
            raise ParseFault(f"the sidecar {path.name} has more than {_SIDECAR_BYTES} bytes", "metadata")
        loaded = json.loads(data)
    except (OSError, ValueError, RecursionError) as e:
        raise ParseFault(f"the sidecar {path.name} is not readable JSON ({type(e).__name__})", "metadata") from None
    if isinstance(loaded, list) and len(loaded) == 1:
        loaded = loaded[0]
    if not isinstance(loaded, dict):
        raise ParseFault(f"the sidecar {path.name} holds no object", "metadata")
    return dict(list(groups.first(_flat(loaded)).items())[:_MOST_KEYS])


def _flat(loaded: Mapping[str, Any]) -> dict[str, Raw]:
    found: dict[str, Raw] = {}
    for key, value in loaded.items():
        if isinstance(value, dict) and key != groups.FIELD:
            found.update({f"{key}.{name}": raw for name, inner in value.items() if (raw := _raw(inner)) is not None})
        elif (raw := groups.kept(key, _raw(value))) is not None:
            found[key] = raw
    return found


def _raw(value: object) -> Raw | None:
    if isinstance(value, list):
        return [v for v in value if _is_scalar(v)] or None
    return value if _is_scalar(value) else None


def _is_scalar(value: object) -> TypeGuard[str | int | float | bool]:
    return isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))
