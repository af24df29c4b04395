"""Whole questions to this project's own documentation, in Markdown on standard output: ``bench/results/traces.md``.

``python -m bench.traces "QUESTION" '{"question": "...", "filters": {...}}'``: each a question, or a request's body as JSON, in
which ``reply`` is what is said to what is asked back. The graph is that of ``configs/local.yaml``. What this writes is not in
its index, nor in the demo's, where it would be the best answer.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import yaml

from assay.serve_config import load
from bench.asked import config
from deployments.launch import BUCKET, DOCUMENTS
from deployments.local import LocalGraph

ROOT = Path(__file__).parents[1]
PORT = 8768
# Shown otherwise, or of no interest to a reader.
_LEFT_OUT = ("id", "request_id", "index_version", "sources", "evidence", "trace", "state")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("questions", nargs="+", metavar="QUESTION", help="a question, or a request's body as JSON")
    bodies = [body(question) for question in parser.parse_args().questions]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _ingest(folder / "index")
        path = folder / "graph.yaml"
        path.write_text(yaml.safe_dump(config(folder / "index")))
        with LocalGraph(load(path), log=folder / "graph.log", port=PORT) as graph:
            graph.wait_ready(300)
            with httpx.Client(base_url=graph.url, timeout=120) as http:
                ask(http, {"question": "What is a bucket?"})  # warm
                for number, asked in enumerate(bodies, 1):
                    reply = asked.pop("reply", None)
                    response = ask(http, asked)
                    print(section(f"## {number}", asked, response), flush=True)
                    if reply is not None:
                        again = {"question": reply, "resume": response["clarification"]["resume"]}
                        print(section("### The reply", again, ask(http, again)), flush=True)


def body(question: str) -> dict[str, Any]:
    return dict(json.loads(question)) if question.lstrip().startswith("{") else {"question": question}


def ask(http: httpx.Client, asked: Mapping[str, Any]) -> dict[str, Any]:
    reply = http.post("/v1/answers", json={**asked, "include": ["trace", "tool_calls", "evidence"]})
    found: dict[str, Any] = reply.raise_for_status().json()
    return found


def section(title: str, asked: Mapping[str, Any], response: Mapping[str, Any]) -> str:
    shown = {key: value for key, value in response.items() if key not in _LEFT_OUT and value not in (None, [], {})}
    steps = [f"| {t['step']} | {t['stage']} | {t['summary'].replace('|', chr(92) + '|')} |" for t in response["trace"]]
    refs = [
        f"{e['slot']} `{e['uri']}` (round {e['round']}; {', '.join(sorted(e['sources']))})"
        for e in response["evidence"]
    ]
    parts = [
        title,
        f"```json\n{json.dumps(asked, ensure_ascii=False)}\n```",
        "\n".join(["| step | stage | what |", "|---|---|---|", *steps]),
        f"```json\n{json.dumps(shown, ensure_ascii=False, indent=1)}\n```",
        f"The evidence: {', '.join(refs)}." if refs else "",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _ingest(index: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "assay",
        "ingest",
        *DOCUMENTS,
        "--index",
        str(index),
        "--bucket",
        BUCKET,
        "--base",
        ".",
    ]
    subprocess.run(command, cwd=ROOT, check=True, stdout=sys.stderr)


if __name__ == "__main__":
    main()
