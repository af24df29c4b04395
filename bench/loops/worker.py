"""One system in a process of its own: a line of JSON in says how many questions, a line out what each took.

What is taken is the processor's time of all threads: no step waits for anything, and others on the machine do not count.
"""

import asyncio
import importlib
import json
import os
import sys
import time
import traceback
from importlib import metadata
from typing import Any

SYSTEMS = {"assay": "assay_loop", "langgraph": "lang_graph", "haystack": "hay_stack", "llamaindex": "llama_index"}


async def _questions(system: Any, count: int) -> list[float]:
    """Milliseconds of the processor for each; one that did not come back with its answer ends all."""
    taken: list[float] = []
    for _ in range(count):
        start = time.process_time()
        answered = await system.ask()
        taken.append(1000 * (time.process_time() - start))
        if fault := answered.fault():
            raise AssertionError(fault)
    return taken


def main(name: str) -> None:
    out = os.fdopen(os.dup(1), "w")  # libraries print what they like
    os.dup2(2, 1)
    system: Any = importlib.import_module(f"bench.loops.{SYSTEMS[name]}").System()
    with asyncio.Runner() as runner:
        for line in sys.stdin:
            try:
                taken = runner.run(_questions(system, json.loads(line)["count"]))
                answer: dict[str, Any] = {"ms": taken, "versions": {p: _version(p) for p in system.packages}}
            except Exception as e:  # noqa: BLE001  # whatever a system raises is its answer
                traceback.print_exc()
                answer = {"fault": f"{type(e).__name__}: {e}"}
            out.write(json.dumps(answer) + "\n")
            out.flush()


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "from source"


if __name__ == "__main__":
    main(sys.argv[1])
