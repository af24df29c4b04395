"""docs/customising.md is what happens: its examples are taken from it and run; and what is wrong with one's own is said."""

import json
import re
import sys
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray import serve

from assay.config import AppConfig, ExpanderConfig
from assay.custom import Parts, implementation, load_class
from assay.errors import SetupError
from assay.expand import LLMExpander
from assay.models import embedder_path
from assay.schemas import AskRequest, AskResponse, Usage
from assay.templates import Prompts
from assay.types import Completion, CompletionRequest, Delta, PlanRequest, ScoreRequest, Scores
from deployments.engine import model_of
from deployments.remote import Reply, reply
from graph import build_app, wire
from tests.fakes import ScriptedLLM
from tests.unit.test_plan import said
from tests.wiring.test_graph import indexed

DOCS = (Path(__file__).parents[2] / "docs" / "customising.md").read_text()
PLANS = '{"variants": ["days of leave each year"]}'


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", DOCS, re.DOTALL)


ENGINES, PROMPTS, IMPLEMENTATION = (yaml.safe_load(block) for block in blocks("yaml"))


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder as the page describes it, on the path of imports."""
    (tmp_path / "my_prompts").mkdir()
    (tmp_path / "my_prompts" / "plan.txt").write_text(blocks("text")[0])
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "mine.py").write_text(blocks("python")[0])
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_package"]:
        del sys.modules[name]


# ---- engines --------------------------------------------------------------------------------------------------------


class _Engine:
    """The deployment of one of the page's engines, but for its model: it plans, scores and writes as any can, and ``ASKED``
    has who did what."""

    def __init__(self, name: str) -> None:
        self._name, self._llm = name, ScriptedLLM()

    async def complete(self, request: CompletionRequest) -> Reply[Completion]:
        ASKED[self._name].add("plan")
        plan = json.loads(said(variants=[f"ocean tides, says {self._name}"], entities=[], topics=[], format="prose"))
        parts = {part: plan[part] for part in json.loads(request.json_schema or "")["properties"]}
        return Reply(Completion(json.dumps(parts), "stop", Usage(llm_calls=1)), 0.0)

    async def score(self, request: ScoreRequest) -> Reply[Scores]:
        ASKED[self._name].add("score")
        return await reply(self._llm.score(request))

    async def stream(self, request: CompletionRequest) -> AsyncGenerator[Delta]:
        ASKED[self._name].add("write")
        yield Delta("The gravity of the Moon causes the ocean tides on Earth [E1].")
        yield Delta(finish_reason="stop", usage=Usage(llm_calls=1))


ASKED: dict[str, set[str]] = defaultdict(set)


def test_the_engines_of_the_page_do_what_they_are_named_for(tmp_path: Path) -> None:
    """The graph of the page's config, whose engines alone are not what they are there."""
    paths = {"index": {"uri": str(indexed(tmp_path))}, "answers": {"path": str(tmp_path / "answers.db")}}
    config = AppConfig.model_validate(ENGINES | paths)
    assert {name: engine.kind for name, engine in config.engines.items()} == {
        "small": "vllm",
        "deepseek": "openai",
        "own-server": "openai",
    }
    engine: Any = serve.deployment(_Engine)
    engines = {name: engine.options(name=f"engine-{name}").bind(name) for name in config.engines}
    models = {name: model_of(engine, Path(config.cache).expanduser()) for name, engine in config.engines.items()}
    app = wire(config, engines, models, str(embedder_path()))
    handle: Any = serve.run(app, name="customised", _local_testing_mode=True)
    asked = AskRequest(question="What causes the ocean tides, and on which planet?", include=["tool_calls"])
    response: AskResponse = handle.ask.remote(asked).result(timeout_s=60)
    assert dict(ASKED) == {"deepseek": {"plan", "write"}, "own-server": {"score"}}
    assert response.answer is not None and response.answer.style == "prose" and response.citations
    assert response.answer.text.startswith("The gravity of the Moon")
    queries = [query for call in response.tool_calls or () for query in call.arguments["queries"]]
    assert "ocean tides, says deepseek" in queries
    assert [d.reason.partition(":")[0] for d in response.degraded] == ["not calibrated"], "there is none for that model"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"reranker": {"engine": "deepseek"}}, "reranker.engine 'deepseek' cannot do 'score'.*'listwise'"),
        ({"generator": {"engine": "deepseek", "style": "extract"}}, "generator.engine 'deepseek' cannot do.*'prose'"),
        ({"engines": {"small": {"kind": "opnai"}}}, "'vllm' or 'openai'"),
    ],
)
def test_an_engine_that_cannot_do_its_stages_work_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        AppConfig.model_validate(ENGINES | change)


def test_listwise_needs_no_scores_and_ones_own_stage_is_not_judged() -> None:
    AppConfig.model_validate(ENGINES | {"reranker": {"engine": "deepseek", "method": "listwise"}})
    AppConfig.model_validate(ENGINES | {"reranker": {"engine": "deepseek", "implementation": "a:B"}})


def test_a_missing_key_is_said_when_the_graph_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DEEPSEEK_API_KEY", raising=False)
    config = AppConfig.model_validate({"engines": {"small": ENGINES["engines"]["deepseek"]}, **PROSE})
    with pytest.raises(SetupError, match="DEEPSEEK_API_KEY is not set"):
        build_app(config)


PROSE = {"reranker": {"method": "listwise"}, "generator": {"style": "prose"}}


def test_a_graph_over_an_endpoint_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPSEEK_API_KEY", "sk-test")
    app = build_app(AppConfig.model_validate({"engines": {"small": ENGINES["engines"]["deepseek"]}, **PROSE}))
    assert app._bound_deployment.name == "Ingress"


# ---- prompts --------------------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_the_prompt_of_the_page_is_what_the_model_reads(own: Path) -> None:
    llm = ScriptedLLM(PLANS)
    prompts = Prompts.load(AppConfig.model_validate(PROMPTS).prompts)
    await LLMExpander(llm, ExpanderConfig(), prompts).plan(PlanRequest("How much PTO is there, and for whom?"))
    asked = llm.history[0]
    assert isinstance(asked, CompletionRequest)
    system = asked.messages[0].content
    assert system.startswith("Give 2 other ways") and system.endswith("written as $5.")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("plan.txt", "$count of $questions", r"plan\.txt has the unknown hole \$questions; its holes are: \$count"),
        ("passage.txt", "Passage:", r"passage\.txt lacks the hole \$passage"),
        ("prose.txt", "Cost: 5 $", r"prose\.txt has a \$ that begins no hole; its holes are: none"),
        ("plna.txt", "x", r"plna\.txt: there is no prompt 'plna'; there are: plan, rewrite"),
    ],
)
def test_a_wrong_template_is_refused_by_its_file(tmp_path: Path, name: str, text: str, words: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(SetupError, match=words):
        Prompts.load(str(tmp_path))


def test_a_folder_that_is_not_there_is_refused_when_the_graph_is_built() -> None:
    with pytest.raises(SetupError, match="does not exist"):
        build_app(AppConfig(prompts="no/such/folder"))


# ---- stages ---------------------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_the_stage_of_the_page_stands_in_for_the_built_in_one(own: Path) -> None:
    config = AppConfig.model_validate(IMPLEMENTATION).expander
    parts = Parts(LLMExpander(ScriptedLLM(PLANS), config), config)
    stage = implementation("expander", config.implementation, parts)
    plan = await stage.plan(PlanRequest("How many days of PTO each year?"))
    assert plan.variants == ("days of leave each year", "How many days of paid time off each year?")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("", "cannot be loaded"),
        ("def MyExpander(parts): ...", "is no class"),
        ("class MyExpander: ...", "lacks the method plan"),
        ("class MyExpander:\n def plan(self, request): ...", r"must be async def plan\(self, request\)"),
        ("class MyExpander:\n async def plan(self): ...", r"must be async def plan\(self, request\)"),
        ("import nothing_of_the_kind", "nothing_of_the_kind"),
    ],
)
def test_a_class_that_is_no_stage_is_refused_when_the_graph_is_built(own: Path, code: str, words: str) -> None:
    (own / "my_package" / "mine.py").write_text(code)
    with pytest.raises(SetupError, match=rf"expander\.implementation.*{words}") as caught:
        build_app(AppConfig.model_validate(IMPLEMENTATION))
    assert caught.value.field == "expander.implementation"


def test_every_port_is_held_to() -> None:
    for stage, word in (("retriever", "describe"), ("reranker", "grade"), ("generator", "generate")):
        with pytest.raises(SetupError, match=f"lacks the method {word}"):
            load_class(stage, "pathlib:Path")  # type: ignore[arg-type]


def test_the_built_in_stages_are_themselves_of_their_ports() -> None:
    for stage, ref in (
        ("expander", "assay.expand:LLMExpander"),
        ("retriever", "assay.retrieve:LocalRetriever"),
        ("reranker", "assay.rerank:LLMReranker"),
        ("generator", "assay.generate:StyledGenerator"),
    ):
        assert load_class(stage, ref).__name__ == ref.partition(":")[2]  # type: ignore[arg-type]
