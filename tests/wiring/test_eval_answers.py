"""``assay eval answers``: a config's graph is started, its modes are compared, and every trace is kept."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from assay.__main__ import main

ROOT = Path(__file__).parents[2]
QUESTIONS = [
    {
        "id": "two",
        "question": "Where is it?",
        "answers": ["there"],
        "evidence": [{"uri": "first.md"}, {"uri": "second.md"}],
    },
    {"id": "one", "question": "<script>alert(1)</script>?", "evidence": [{"uri": "first.md"}]},
    {"id": "none", "question": "Is there nothing?", "answerable": False},
]


def run(*words: str | Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "assay", "eval", "answers", *map(str, words)]
    env = {
        name: value for name, value in os.environ.items() if name != "RAY_AUTH_MODE"
    }  # as a shell is where nobody set it
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=240)


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    (tmp_path / "questions.jsonl").write_text("\n".join(map(json.dumps, QUESTIONS)))
    return tmp_path / "questions.jsonl"


def answering(folder: Path, name: str) -> Path:
    raw = yaml.safe_load((ROOT / "configs" / "local.yaml").read_text())
    application = raw["applications"][0]
    application["import_path"], application["args"] = "tests.wiring.answering_graph:build_app", {}
    application.pop("deployments", None)
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(raw))
    return folder / f"{name}.yaml"


@pytest.mark.timeout(300)
def test_two_configs_compared(tmp_path: Path, questions: Path) -> None:
    """Each one's graph is started, asked, and ended before the next."""
    configs: list[str | Path] = ["--config", answering(tmp_path, "one"), "--config", answering(tmp_path, "other")]
    asked: list[str | Path] = ["--questions", questions, "--limit", "2", "--mode", "agentic", *configs]
    done = run(*asked, "--traces", tmp_path / "traces", "--json", tmp_path / "found.json")
    assert done.returncode == 0, done.stderr
    runs = json.loads((tmp_path / "found.json").read_text())["runs"]
    assert list(runs) == ["one-agentic", "other-agentic"] and "minus one-agentic" in done.stdout
    assert all(made["ended by"] == {"answered": 2} for made in runs.values())


@pytest.mark.timeout(300)
def test_modes_of_a_config_compared(tmp_path: Path, questions: Path) -> None:
    answering(tmp_path, "answering")
    words: list[str | Path] = [
        "--questions",
        questions,
        "--mode",
        "pipeline",
        "--mode",
        "agentic",
        "--config",
        tmp_path / "answering.yaml",
    ]
    kept: list[str | Path] = [
        *words,
        "--traces",
        tmp_path / "traces",
        "--json",
        tmp_path / "found.json",
        "--page",
        tmp_path / "found.html",
    ]
    done = run(*kept)
    assert done.returncode == 0, done.stderr
    assert "evidence R@5" in done.stdout and "ended by no_evidence" in done.stdout
    found = json.loads((tmp_path / "found.json").read_text())
    pipeline, agentic = (found["runs"][f"answering-{mode}"] for mode in ("pipeline", "agentic"))
    assert (pipeline["means"]["evidence R@5"]["mean"], agentic["means"]["evidence R@5"]["mean"]) == (0.75, 1.0)
    assert (pipeline["means"]["hop 2"]["mean"], agentic["means"]["hop 2"]["mean"]) == (0.0, 1.0)
    assert agentic["against"]["evidence R@5"]["wins"] == 1
    assert pipeline["ended by"] == {"answered": 2, "no_evidence": 1} and pipeline["failed"] == {}
    assert agentic["questions"]["none"]["abstention recall"] == 1.0
    page = (tmp_path / "found.html").read_text()
    assert "<svg" in page and "<script>alert" not in page and "&lt;script&gt;alert" in page
    trace = [json.loads(line) for line in (tmp_path / "traces" / "answering-agentic.jsonl").read_text().splitlines()]
    assert [row["id"] for row in trace] == ["two", "one", "none"] and trace[0]["evidence"][1]["uri"] == "second.md"
    assert trace[0]["trace"][0]["summary"] == "2 hits" and trace[0]["tool_calls"][0]["hits"] == 2
    assert all(row["state"]["mode"] == "agentic" for row in trace[:2])
    assert not (tmp_path / "traces" / "unfinished.json").exists()
    again = run(*kept, "--no-ask")
    assert again.returncode == 0 and again.stdout == done.stdout, again.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--questions", "nowhere.jsonl"], "'nowhere.jsonl' cannot be read: No such file"),
        (["--page", "x.pdf"], "has an ending that it cannot have (there are: .html)"),
        (["--json", "nowhere/x.json"], "cannot be written: its folder is missing"),
        (["--config", "nowhere.yaml"], "cannot read the config nowhere.yaml"),
        (["--no-ask", "--traces", "nowhere"], "running.jsonl' cannot be read"),
        (["--mode", "fast"], "there is no mode 'fast' (there are: auto, pipeline, agentic, tools)"),
    ],
)
def test_faults_are_told_before_any_work(
    questions: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [] if "--questions" in words else ["--questions", str(questions)]
    with pytest.raises(SystemExit) as end:
        main(["eval", "answers", *given, *words])
    out, err = capsys.readouterr()
    assert end.value.code in (1, 2) and out == ""
    assert said in " ".join(err.split())


def test_a_command_that_is_half_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "everything"]) == 2
    assert "no command 'eval everything'; there are" in capsys.readouterr().err
