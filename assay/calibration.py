"""What was fitted for one model by ``python -m assay calibrate``: its file, and how it becomes part of the config.

A small model's own yes or no is at chance, a large one's is not, and which way its probabilities point differs from model to
model: so method, sign, weights and thresholds are fitted, and hold for the weights and the prompts that they were fitted with.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from assay.config import AnyEngine, AppConfig, EngineConfig, GradeConfig, RerankerConfig, RerankMethod, SupportConfig
from assay.errors import SetupError
from assay.frozen import Frozen
from assay.templates import Prompts

FOLDER = Path(__file__).parents[1] / "configs" / "calibration"
# 1 had what speaks against a question as a mean, of one passage; to 2 a rule that forbids was a denial
FORMAT: Literal[3] = 3
# The templates that each method scores with; ``passage`` also gives the grader its likelihoods.
PROMPTS: Mapping[RerankMethod, str] = {
    "title": "title",
    "likelihood": "passage",
    "pointwise": "pointwise",
    "score": "grade",
    "listwise": "listwise",
}
_BLOCK, _BLOCKS = 65_536, 64


class Figure(Frozen):
    """A measured figure with the bounds of its 95 % bootstrap interval, over ``questions`` that it was not fitted on."""

    name: str
    value: float
    low: float
    high: float
    questions: int


class Reranking(Frozen):
    """``weight`` is the model's share beside the first stage's score; below zero the model's order is turned round."""

    method: RerankMethod
    weight: float = Field(ge=-1, le=1)
    passage_tokens: int = Field(ge=16, le=8192)
    threshold: float | None = None


class Calibration(Frozen):
    """One file of ``configs/calibration``. ``checksum``: of the weights, "" where they are out of reach (an endpoint's);
    ``prompt``: of the template that the method scores with; ``questions``: data set -> how many of its questions."""

    format: Literal[3]
    model: str
    checksum: str
    prompt: str
    rerank: Reranking
    grade: GradeConfig
    support: SupportConfig
    questions: Mapping[str, int]
    figures: tuple[Figure, ...]

    def text(self) -> str:
        return json.dumps(self.model_dump(mode="json"), indent=1) + "\n"


def model_name(engine: AnyEngine) -> str:
    """The name of an engine's model as a file's: 'embedded:x' and '/models/x' are x, 'Qwen/Qwen3-8B' is qwen--qwen3-8b."""
    ref = engine.model.removeprefix("embedded:")
    if isinstance(engine, EngineConfig) and ref.startswith(("/", ".", "~")):
        ref = Path(ref).expanduser().resolve().name
    return "".join(c if c.isalnum() or c in "._-" else "--" for c in ref.lower())


def weights_checksum(model: str) -> str:
    """Of a model folder: sizes of its weight files, and blocks spread over each (hashing 100 GB at every start would be
    slower than loading them). "" for what is no folder."""
    folder = Path(model)
    files = sorted(f for f in folder.glob("*") if f.suffix in (".safetensors", ".bin", ".gguf")) if model else []
    if not files:
        return ""
    digest = hashlib.sha256()
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name} {size}\n".encode())
        with file.open("rb") as weights:
            for block in range(_BLOCKS):
                weights.seek(max(0, (size - _BLOCK) * block // (_BLOCKS - 1)))
                digest.update(weights.read(_BLOCK))
    return digest.hexdigest()


def prompt_checksum(method: RerankMethod, prompts: Prompts) -> str:
    name = PROMPTS[method]
    text = prompts[name].text + ("" if method == "likelihood" else prompts["passage"].text)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read(file: Path) -> Calibration:
    """Raises ``SetupError`` with the file and the field that is wrong."""
    try:
        return Calibration.model_validate_json(file.read_bytes())
    except OSError as error:
        raise SetupError(f"the calibration {file} cannot be read: {error.strerror}", "reranker.calibration") from error
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        if field == "format":
            said = (
                f"the calibration {file} is of another format than {FORMAT}: fit it anew with python -m assay calibrate"
            )
            raise SetupError(said, "reranker.calibration") from error
        raise SetupError(f"the calibration {file}: {field}: {first['msg']}", "reranker.calibration") from error


def apply(config: AppConfig, model: str, prompts: Prompts, folder: Path = FOLDER) -> AppConfig:
    """The config with what was fitted for the reranker's model; what the config says itself stands.

    ``model``: the folder or id of that model. Without a calibration for it, ``reranker.uncalibrated`` says why. Raises
    ``SetupError`` for a file that is damaged, and for one that the config names but that is another model's.
    """
    own = config.reranker
    if own.implementation:  # it weighs as it likes
        return config
    if own.calibration == "none":
        return _uncalibrated(config, "the config asks for none (reranker.calibration)")
    engine = config.engines[own.engine]
    named = own.calibration != "auto"
    file = Path(own.calibration).expanduser() if named else folder / f"{model_name(engine)}.json"
    if not named and not file.exists():
        return _uncalibrated(config, f"there is none for the model {model_name(engine)}")
    found = read(file)
    if fault := _unfit(found, engine, model, prompts, own):
        if named:
            raise SetupError(f"the calibration {file} {fault}", "reranker.calibration")
        return _uncalibrated(config, f"{file.name} {fault}")
    fitted = {**dict(found.rerank), "grade": found.grade, "support_weights": found.support}
    taken = {name: value for name, value in fitted.items() if name not in own.model_fields_set}
    return config.model_copy(update={"reranker": own.model_copy(update=taken)})


def _unfit(found: Calibration, engine: AnyEngine, model: str, prompts: Prompts, own: RerankerConfig) -> str | None:
    if found.model != model_name(engine):
        return f"is for the model {found.model}, not {model_name(engine)}"
    if found.checksum != weights_checksum(model):
        return "was fitted for other weights of this model"
    if "method" in own.model_fields_set and own.method != found.rerank.method:
        return f"was fitted for the method '{found.rerank.method}', and the config asks for '{own.method}'"
    if found.prompt != prompt_checksum(found.rerank.method, prompts):
        return "was fitted with other prompts"
    return None


def _uncalibrated(config: AppConfig, why: str) -> AppConfig:
    reranker: RerankerConfig = config.reranker.model_copy(update={"uncalibrated": why})
    return config.model_copy(update={"reranker": reranker})
