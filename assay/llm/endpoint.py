"""The config of an OpenAI-compatible endpoint, with what is known of some: address, key, switches, and what they can do."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import Field, model_validator

from assay.frozen import Frozen

# json_schema: the endpoint holds the output to the schema. json_object: it only promises JSON; the schema goes into the
# prompt, and what is not of it is an error. score: log-probabilities of given texts (vLLM's prompt_logprobs).
# grammar: llguidance's Lark, which a vLLM server holds where it was started with that backend.
Capability = Literal["json_schema", "json_object", "regex", "choice", "grammar", "score", "tools"]
Strategy = Literal["instruct", "thinking"]


@dataclass(frozen=True, slots=True)
class Preset:
    """``thinks`` and ``answers`` are sent to switch a hybrid model's thinking on and off."""

    can: frozenset[Capability]
    base_url: str | None = None
    key_env: str | None = None
    thinks: Mapping[str, Any] = field(default_factory=dict)
    answers: Mapping[str, Any] = field(default_factory=dict)
    # Takes vLLM's own fields: structured_outputs, cache_salt, request_id.
    is_vllm: bool = False
    # Wants the reasoning before a tool call back, and refuses the conversation without it.
    wants_reasoning: bool = False


PRESETS: dict[str, Preset] = {
    "generic": Preset(frozenset({"json_schema", "tools"})),
    "deepseek": Preset(
        frozenset({"json_object", "tools"}),
        "https://api.deepseek.com",
        "DEEPSEEK_API_KEY",
        {"thinking": {"type": "enabled"}},
        {"thinking": {"type": "disabled"}},
        wants_reasoning=True,
    ),
    "qwen": Preset(
        frozenset({"json_object", "tools"}),
        "https://dashscope-intl.aliyuncs.com/compatible-mode/v1",
        "DASHSCOPE_API_KEY",
        {"enable_thinking": True},
        {"enable_thinking": False},
    ),
    "vllm": Preset(
        frozenset({"json_schema", "regex", "choice", "score", "tools"}),
        thinks={"chat_template_kwargs": {"enable_thinking": True}},
        answers={"chat_template_kwargs": {"enable_thinking": False}},
        is_vllm=True,
    ),
}


class EndpointConfig(Frozen):
    """A model behind an OpenAI-compatible endpoint. Stages that name it share its connections and its limits."""

    kind: Literal["openai"]
    preset: Literal["generic", "deepseek", "qwen", "vllm"] = "generic"
    model: str = Field(min_length=1, description="The endpoint's name for the model.")
    base_url: str | None = Field(
        default=None, pattern=r"^https?://[^\s@]+$", description="Up to and with '/v1'; presets of vendors know theirs."
    )
    key_env: str | None = Field(
        default=None,
        pattern=r"^[A-Z][A-Z0-9_]{0,99}$",
        description="Name of the environment variable that holds the key. The key itself stands in no config.",
    )
    strategy: Strategy = Field(default="instruct", description="'thinking': the model reasons before it answers.")
    reasoning_opened: bool | None = Field(
        default=None,
        description="thinking, without a reasoning field: does the prompt end with <think>? Not known: text waits for its end.",
    )
    capable: bool = Field(default=True, description="Large enough to plan a search in words. See docs/stages.md.")
    capabilities: tuple[Capability, ...] | None = Field(
        default=None, description="What the endpoint can do, where that is not what its preset says."
    )
    max_model_len: int = Field(
        default=32_768,
        ge=256,
        le=10_000_000,
        description="Tokens of prompt and output together that the model takes. Prompts are cut to it.",
    )
    tokenizer: str | None = Field(
        default=None, description="Folder or Hugging Face id of the model's tokenizer, for budgets; none: an estimate."
    )
    extra_body: dict[str, Any] = Field(
        default={}, description="Sent with every generation; it wins over our own fields."
    )
    connect_timeout_s: float = Field(default=5, gt=0, le=60)
    first_token_timeout_s: float = Field(default=60, gt=0, le=3600)
    total_timeout_s: float = Field(default=300, gt=0, le=3600, description="One generation with its retries.")
    retries: int = Field(
        default=2, ge=0, le=10, description="Only before the first token, and of what may pass by itself."
    )
    min_replicas: int = Field(default=1, ge=0, le=1000)
    max_replicas: int = Field(default=1, ge=1, le=1000)
    target_ongoing_requests: float = Field(default=32, gt=0)
    max_ongoing_requests: int = Field(default=64, ge=1, le=10_000, description="Requests that a replica has open.")

    @model_validator(mode="after")
    def _whole(self) -> "EndpointConfig":
        if self.min_replicas > self.max_replicas:
            raise ValueError(f"min_replicas ({self.min_replicas}) must not exceed max_replicas ({self.max_replicas})")
        if not (self.base_url or PRESETS[self.preset].base_url):
            raise ValueError(f"base_url is required: the preset '{self.preset}' knows none")
        return self

    @property
    def url(self) -> str:
        return (self.base_url or PRESETS[self.preset].base_url or "").rstrip("/")

    @property
    def key_variable(self) -> str | None:
        """The preset's variable is for the preset's address: another server gets no key that it was not given by name."""
        return self.key_env or (None if self.base_url else PRESETS[self.preset].key_env)

    @property
    def is_capable(self) -> bool:
        return self.capable

    @property
    def can(self) -> frozenset[Capability]:
        return PRESETS[self.preset].can if self.capabilities is None else frozenset(self.capabilities)
