"""docs/customising.md is what happens: its examples are taken from it and run; and what is wrong with one's own is said."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from assay.config import AppConfig, ExpanderConfig
from assay.custom import Parts, implementation, load_class
from assay.errors import SetupError
from assay.expand import LLMExpander
from assay.templates import Prompts
from assay.types import CompletionRequest, PlanRequest
from graph import build_app
from tests.fakes import ScriptedLLM

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


def test_the_engines_of_the_page_are_a_config() -> None:
    config = AppConfig.model_validate(ENGINES)
    assert {engine.kind for engine in config.engines.values()} == {"vllm", "openai"}


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
