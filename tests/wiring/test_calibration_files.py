"""A model's calibration: its file, when it holds, and what becomes of the config."""

from pathlib import Path

import pytest

from assay import calibration as c
from assay.config import AppConfig, EngineConfig, GradeConfig, RerankerConfig, SupportConfig
from assay.errors import SetupError
from assay.templates import Prompts

MODEL = "tiny"
GRADE = GradeConfig(intercept=0.5, weights={"word_coverage": 2.0}, means={"word_coverage": 0.6})


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    folder = tmp_path / MODEL
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * 4096)
    return folder


@pytest.fixture
def fitted(tmp_path: Path, weights: Path) -> Path:
    found = c.Calibration(
        format=c.FORMAT,
        model=MODEL,
        checksum=c.weights_checksum(str(weights)),
        prompt=c.prompt_checksum("pointwise", Prompts()),
        rerank=c.Reranking(method="pointwise", weight=-0.3, passage_tokens=64),
        grade=GRADE,
        support=SupportConfig(),
        questions={"hotpotqa": 100},
        figures=(c.Figure(name="AUC", value=0.9, low=0.8, high=0.95, questions=100),),
    )
    folder = tmp_path / "calibration"
    folder.mkdir()
    (folder / f"{MODEL}.json").write_text(found.text())
    return folder


def config(weights: Path, **reranker: object) -> AppConfig:
    return AppConfig(
        engines={"small": EngineConfig(model=str(weights))}, reranker=RerankerConfig.model_validate(reranker)
    )


def test_a_fitting_calibration_is_taken(weights: Path, fitted: Path) -> None:
    found = c.apply(config(weights), str(weights), Prompts(), fitted).reranker
    assert (found.method, found.weight, found.passage_tokens, found.uncalibrated) == ("pointwise", -0.3, 64, "")
    assert found.grade == GRADE


def test_what_the_config_says_itself_stands(weights: Path, fitted: Path) -> None:
    found = c.apply(config(weights, passage_tokens=48), str(weights), Prompts(), fitted).reranker
    assert (found.method, found.passage_tokens) == ("pointwise", 48)


def test_another_method_than_the_fitted_one_is_not_calibrated(weights: Path, fitted: Path) -> None:
    found = c.apply(config(weights, method="likelihood"), str(weights), Prompts(), fitted).reranker
    assert "pointwise" in found.uncalibrated and found.weight == RerankerConfig().weight


def test_other_weights_of_the_same_name_are_not_calibrated(weights: Path, fitted: Path) -> None:
    file = weights / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\xff\xff")
    found = c.apply(config(weights), str(weights), Prompts(), fitted).reranker
    assert "other weights" in found.uncalibrated and found.grade == GradeConfig()


def test_other_prompts_are_not_calibrated(weights: Path, fitted: Path) -> None:
    prompts = Prompts({"pointwise": "$question $passage?"})
    assert "other prompts" in c.apply(config(weights), str(weights), prompts, fitted).reranker.uncalibrated


def test_a_model_without_a_file_and_a_config_that_wants_none(weights: Path, tmp_path: Path, fitted: Path) -> None:
    assert MODEL in c.apply(config(weights), str(weights), Prompts(), tmp_path / "empty").reranker.uncalibrated
    asked = c.apply(config(weights, calibration="none"), str(weights), Prompts(), fitted).reranker
    assert "reranker.calibration" in asked.uncalibrated


def test_a_named_file_must_fit(weights: Path, fitted: Path, tmp_path: Path) -> None:
    named = config(weights, calibration=str(fitted / f"{MODEL}.json"))
    assert c.apply(named, str(weights), Prompts()).reranker.weight == -0.3
    (weights / "model.safetensors").write_bytes(b"other")
    with pytest.raises(SetupError, match="other weights"):
        c.apply(named, str(weights), Prompts())
    with pytest.raises(SetupError, match="cannot be read"):
        c.apply(config(weights, calibration=str(tmp_path / "gone.json")), str(weights), Prompts())


@pytest.mark.parametrize(
    ("text", "field"), [("{", "JSON"), ('{"format": 2}', "another format.*calibrate"), ('{"format": 3}', "model")]
)
def test_a_damaged_file_is_refused_by_name(weights: Path, fitted: Path, text: str, field: str) -> None:
    (fitted / f"{MODEL}.json").write_text(text)
    with pytest.raises(SetupError, match=rf"{MODEL}\.json.*{field}"):
        c.apply(config(weights), str(weights), Prompts(), fitted)


@pytest.mark.parametrize(
    ("model", "name"), [("embedded:a-b", "a-b"), ("/models/Some-7B", "some-7b"), ("Qwen/Qwen3-8B", "qwen--qwen3-8b")]
)
def test_a_model_has_a_file_name(model: str, name: str) -> None:
    assert c.model_name(EngineConfig(model=model)) == name
