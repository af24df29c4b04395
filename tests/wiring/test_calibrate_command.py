"""``python -m assay calibrate`` from end to end: a scripted model behind an endpoint, a little data, and a graph that takes up
what was written."""

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from ray import serve

from assay import calibration, serve_config
from assay.__main__ import main
from assay.config import AppConfig, RerankerConfig
from assay.errors import SetupError
from assay.models import embedder_path
from assay.templates import Prompts
from assay.types import ItemScore, ScoreItem, ScoreRequest, Scores
from deployments.engine import model_of
from graph import wire
from tests.fakes import ScriptedLLM
from tests.openai_server import OpenAIServer
from tests.wiring.test_engines_of_stages import deployments

ROOT = Path(__file__).parents[2]
TOPICS = [
    tuple(line.split())
    for line in """bees collect nectar meadows
beavers build dams streams
spiders spin webs attics
moles dig tunnels lawns
owls hunt mice barns
whales swallow krill oceans
ants farm fungus mounds
squirrels bury acorns parks
salmon climb rapids rivers
bats follow echoes caves
otters crack shells bays
crabs carry stones beaches""".splitlines()
]
TEXTS = [
    f"The {who} {do} {what} all day. Their young live in {home} until spring comes." for who, do, what, home in TOPICS
]


class Knows(ScriptedLLM):
    """What no search can know: whose neighbours each kind are. The others' names are no likelier for any passage."""

    async def score(self, request: ScoreRequest) -> Scores:
        scores = await super().score(request)
        return Scores(tuple(map(self._known, request.items, scores.items)), scores.usage)

    @staticmethod
    def _known(item: ScoreItem, score: ItemScore) -> ItemScore:
        for (who, *_), (other, *_) in zip(TOPICS, TOPICS[5:] + TOPICS[:5], strict=True):
            if item.continuation.strip() == f"{who}?":
                return ItemScore(-0.1 if f"The {other} " in item.context else -6.0, 1)
        return score


def write_data(data: Path) -> None:
    """Two sets of labelled evidence, one judged collection: a dozen kinds of animals, each with a text of its own."""
    names = [who.capitalize() for who, *_ in TOPICS]
    context = [[name, text.split(". ")] for name, text in zip(names, TEXTS, strict=True)]
    steps = [
        {
            "question": f"where do those live that {do} {what} and those beside them?",
            "context": context,
            "supporting_facts": [[names[n], 0], [names[n - 1], 0]],
        }
        for n, (_, do, what, _) in enumerate(TOPICS)
    ]
    queries, truth = [], {}
    for (who, do, what, home), text in zip(TOPICS, TEXTS, strict=True):
        for question, answers in ((f"what do {who} {do}", [what]), (f"why would {who} avoid {home}", [])):
            queries.append({"id": question, "question": question, "context": text})
            truth[question] = {"is_impossible": not answers, "answers": answers}
    judged = [f"{n}\t{(n + 5) % len(TOPICS)}\t1" for n in range(len(TOPICS))]
    files = {
        "multihop/hotpotqa_100/hotpotqa_train.json": json.dumps(steps),
        "unanswerable/squad2_250/queries.json": json.dumps({"queries": queries}),
        "unanswerable/squad2_250/ground_truth.json": json.dumps(truth),
        "ranking/neighbours/corpus.jsonl": lines(
            {"_id": str(n), "title": names[n], "text": t} for n, t in enumerate(TEXTS)
        ),
        "ranking/neighbours/queries.jsonl": lines(
            {"_id": str(n), "text": f"who live next to {who}?"} for n, (who, *_) in enumerate(TOPICS)
        ),
        "ranking/neighbours/qrels/test.tsv": "\n".join(["query-id\tcorpus-id\tscore", *judged]) + "\n",
    }
    for name, text in files.items():
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_text(text)


def lines(rows: Iterator[dict[str, str]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def write_config(folder: Path, url: str, preset: str = "vllm") -> Path:
    """Its model's folder has weights, of which the calibration is, and a tokenizer."""
    model = folder / "models" / "tiny-7b"
    model.mkdir(parents=True)
    (model / "tokenizer.json").write_bytes((embedder_path() / "tokenizer.json").read_bytes())
    (model / "model.safetensors").write_bytes(bytes(range(256)))
    engine = {"kind": "openai", "preset": preset, "model": "Some/Tiny-7B", "base_url": url, "tokenizer": str(model)}
    args = {
        "engines": {"small": {}, "tiny": engine},
        "reranker": {"engine": "tiny", **({} if preset == "vllm" else {"method": "listwise"})},
    }
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump({"applications": [{"name": "assay", "args": args}]}))
    return file


def checkout(folder: Path) -> Path:
    """One of the package's own, so that the file is written to where it belongs and not into this one."""
    folder.mkdir()
    for name in ("assay", "deployments", "graph.py"):
        (folder / name).symlink_to(ROOT / name)
    return folder


class Done(NamedTuple):
    """What the command left: its folder, and its two streams."""

    folder: Path
    out: str
    err: str

    @property
    def file(self) -> Path:
        return self.folder / "checkout" / "configs" / "calibration" / "some--tiny-7b.json"

    @property
    def config(self) -> AppConfig:
        return serve_config.load(self.folder / "config.yaml").app

    @property
    def model(self) -> str:
        return model_of(self.config.engines["tiny"], self.folder)


class _Engine: ...


async def calibrated(folder: Path) -> tuple[int, str, str]:
    """The command's exit status, and what it wrote to its two streams."""
    write_data(folder / "data")
    async with OpenAIServer(Knows()) as server:
        config = write_config(folder, server.url)
        words = [
            "--engine",
            "tiny",
            "--data",
            "data",
            "--config",
            str(config),
            "--work",
            "work",
            "--methods",
            "likelihood",
        ]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "assay", "calibrate", *words),
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(checkout(folder / "checkout"))},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    folder = tmp_path_factory.mktemp("calibrate")
    status, out, err = asyncio.run(calibrated(folder))
    assert status == 0, err
    return Done(folder, out, err)


def test_it_says_what_it_did_and_judges_by_what_the_fit_has_not_seen(done: Done) -> None:
    assert f"written: {done.file}" in " ".join(done.out.split())
    written = json.loads(done.file.read_text())
    assert (written["model"], written["questions"]) == ("some--tiny-7b", {"hotpotqa": 12, "squad2": 24})
    named = {figure["name"]: figure for figure in written["figures"]}
    for name, figure in named.items():
        assert name in done.out and f"{figure['value']:.3f} │ {figure['low']:.3f} to {figure['high']:.3f}" in done.out
    unseen = (
        "cross-validated",
        "fitted without this set",
        "held out",
        "first stage",
        "share of words alone",
        "min_holds",
    )
    assert [name for name in named if not any(how in name for how in unseen)] == []
    for part in ("hotpotqa,", "squad2,", "all sets,", "about,", "holds,", "refused,", "support,", "neighbours,"):
        assert any(name.startswith(part) for name in named), part
    assert "evidence: 96 of 96" in done.err and "likelihood: 28 prompt tokens a passage" in done.err


def test_a_graph_of_that_model_takes_up_what_was_fitted(done: Done) -> None:
    """All of it, by its place alone; it is for the endpoint's own weights and prompts, so that no other has it."""
    written = json.loads(done.file.read_text())
    fitted = calibration.apply(done.config, done.model, Prompts(), done.file.parent).reranker
    assert fitted.uncalibrated == ""
    assert fitted.model_dump(mode="json", include=set(written["rerank"])) == written["rerank"]
    assert fitted.grade.model_dump(mode="json") == written["grade"]
    assert fitted.support_weights.model_dump(mode="json") == written["support"]
    default = RerankerConfig()
    assert fitted.weight > default.weight, "the model knows what the search does not"
    assert fitted.threshold is not None, "and it drops the others"
    for part in ("grade", "support_weights"):
        assert getattr(fitted, part) != getattr(default, part), part
    assert fitted.grade.about != default.grade.about and fitted.grade.holds != default.grade.holds


def test_a_graph_is_calibrated_by_the_rerankers_own_model(done: Done) -> None:
    """The file that the config names is bound to the stage; for any other model it is refused when the graph is built."""
    other = done.file.parents[3] / "models" / "other"
    for models, refused in (
        ({"tiny": done.model, "small": str(other)}, False),
        ({"tiny": str(other), "small": done.model}, True),
    ):
        reranker = done.config.reranker.model_copy(update={"calibration": str(done.file)})
        asked = done.config.model_copy(update={"reranker": reranker})
        engines = {name: serve.deployment(_Engine, name=f"engine-{name}").bind() for name in models}
        if refused:
            with pytest.raises(SetupError, match="other weights"):
                wire(asked, engines, models, "embedder")
        else:
            bound = dict(deployments(wire(asked, engines, models, "embedder")))["Reranker"][0]
            assert bound.weight == json.loads(done.file.read_text())["rerank"]["weight"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"--engine": "tniy"}, "the config has no engine 'tniy' (there are: small, tiny)"),
        ({"--methods": "likelihood,magic"}, "'magic' is no method of reranking"),
        ({"--data": "empty"}, "has no labelled evidence"),
        ({}, "the engine 'tiny' cannot do 'score', which the method 'likelihood' needs"),
    ],
    ids=["no such engine", "no such method", "nothing labelled", "an endpoint without scores"],
)
def test_what_cannot_be_fitted_is_said_and_nothing_is_written(
    change: dict[str, str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_data(tmp_path / "data")
    config = write_config(tmp_path, "http://127.0.0.1:9/v1", preset="vllm" if change else "generic")
    options = {"--engine": "tiny", "--data": "data", "--methods": "likelihood", "--work": "work", "--out": "out.json"}
    options = {n: str(tmp_path / v) if n in ("--data", "--work", "--out") else v for n, v in (options | change).items()}
    given = [word for option in options.items() for word in option]
    assert main(["calibrate", "--config", str(config), *given]) == 1
    assert words in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out.json").exists()
