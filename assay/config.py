"""The one config tree. Validated before any replica starts; every default runs on a laptop; units stand in the names."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from assay.frozen import Frozen as _Config
from assay.llm.endpoint import Capability, EndpointConfig, Strategy
from assay.logistic import Logistic
from assay.schemas import STEPS, Fusion, Mode, Step


class EngineConfig(_Config):
    """One vLLM engine, a Serve deployment of its own. Stages that name the same engine share its weights and its cache."""

    kind: Literal["vllm"] = "vllm"
    model: str = Field(
        default="embedded:smollm2-135m-instruct",
        description="'embedded:smollm2-135m-instruct', a local folder, or a Hugging Face model id.",
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="float32", description="float32 is three times faster than bfloat16 on CPUs without AVX512-BF16."
    )
    device: Literal["cpu", "gpu"] = "cpu"
    accelerator_type: str | None = Field(default=None, description="Ray accelerator type, such as L4, A100 or H100.")
    tensor_parallel: int = Field(default=1, ge=1, le=64)
    node_labels: Mapping[str, str] = Field(
        default={}, description="Labels that a node must have to hold a replica; none: any node with the GPUs."
    )
    capable: bool | None = Field(
        default=None,
        description="Large enough to plan a search in words; none: every model but the embedded one. See docs/stages.md.",
    )
    max_model_len: int = Field(default=2048, ge=256, le=1_000_000, description="Tokens of prompt and output together.")
    max_num_seqs: int = Field(default=32, ge=1, le=1024, description="Sequences that the engine runs side by side.")
    kv_cache_gib: float = Field(default=1.0, gt=0, le=1024, description="CPU only: memory for the KV cache, in GiB.")
    gpu_memory_utilization: float = Field(default=0.9, gt=0, le=1)
    enforce_eager: bool = True
    reasoning_parser: str | None = None
    strategy: Strategy = Field(default="instruct", description="'thinking': the model reasons before it answers.")
    grammars: Literal["xgrammar", "guidance"] = Field(
        default="xgrammar",
        description="What holds constrained outputs. guidance can also hold quotes to their passage, and is slower to warm up.",
    )
    tool_parser: str | None = Field(
        default=None,
        description="vLLM's parser for the model's tool calls, such as hermes; none: it can call no tools.",
    )
    openai_port: int | None = Field(
        default=None,
        ge=1,
        le=65535,
        description="Loopback port for vLLM's own OpenAI API of this engine, without a key.",
    )
    min_replicas: int = Field(default=1, ge=0, le=1000)
    max_replicas: int = Field(default=1, ge=1, le=1000)
    target_ongoing_requests: float = Field(default=8, gt=0)
    max_ongoing_requests: int = Field(default=64, ge=1, le=10_000)
    health_timeout_s: float = Field(
        default=30, gt=0, le=600, description="A one-token generation must end within this."
    )
    engine_kwargs: dict[str, Any] = Field(
        default={},
        description="Passed to vLLM as they are; they win over the above, in structured_outputs_config field by field.",
    )

    @model_validator(mode="after")
    def _replicas(self) -> "EngineConfig":
        if self.min_replicas > self.max_replicas:
            raise ValueError(f"min_replicas ({self.min_replicas}) must not exceed max_replicas ({self.max_replicas})")
        if "max_model_len" in self.engine_kwargs:
            raise ValueError("engine_kwargs.max_model_len: set max_model_len itself, to which prompts are cut")
        if self.openai_port is not None and self.max_replicas > 1:
            raise ValueError(
                "openai_port needs max_replicas of 1: two replicas of one machine would want the same port"
            )
        return self

    @property
    def is_capable(self) -> bool:
        return not self.model.startswith("embedded:") if self.capable is None else self.capable

    @property
    def can(self) -> frozenset[Capability]:
        always: tuple[Capability, ...] = ("json_schema", "regex", "choice", "score")
        tools: tuple[Capability, ...] = ("tools",) if self.tool_parser else ()
        grammar: tuple[Capability, ...] = ("grammar",) if self.grammars == "guidance" else ()
        return frozenset((*always, *tools, *grammar))


AnyEngine = Annotated[
    Annotated[EngineConfig, Tag("vllm")] | Annotated[EndpointConfig, Tag("openai")],
    Discriminator(
        lambda given: given.get("kind", "vllm") if isinstance(given, dict) else getattr(given, "kind", None),
        custom_error_type="engine_kind",
        custom_error_message="kind must be 'vllm' or 'openai'",
    ),
]


class Legs(_Config):
    """How an index's legs are built. An index keeps what it was built with, since scores of unlike segments cannot be
    compared; another choice means that ``compact`` builds all segments anew."""

    dense: Literal["auto", "flat", "ivf", "sq8", "hnsw"] = Field(
        default="auto",
        description="flat compares all rows, ivf those of the nearest lists; sq8 (lists) and hnsw (a graph) choose by 8-bit "
        "codes what is compared. auto: flat or ivf, by a segment's size.",
    )
    k1: float = Field(default=1.2, ge=0, le=10, description="BM25: how fast more of a term is worth less.")
    # Passages are cut to one size: their length says less than documents' does.
    b: float = Field(
        default=0.6, ge=0, le=1, description="BM25: how much a long text is marked down, 0 for not at all."
    )


class IndexConfig(Legs):
    uri: str = Field(default=".assay/index", description="Folder or object-store URI of the index.")
    embedder: str = Field(
        default="embedded:all-minilm-l6-v2", description="'embedded:all-minilm-l6-v2', a local folder, or a model id."
    )
    embed_device: Literal["cpu", "cuda"] = "cpu"
    poll_s: float = Field(default=1.0, gt=0, le=3600, description="How often a retriever looks for a newer snapshot.")

    @property
    def legs(self) -> Legs:
        return Legs(**self.model_dump(include=set(Legs.model_fields)))


_CLASS = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"


def _implementation() -> Any:
    return Field(
        default=None,
        pattern=_CLASS,
        description="'module:Class' that stands in for this stage: docs/customising.md.",
    )


Placement = Literal["deployment", "driver"]


def _placement() -> Any:
    return Field(
        default="deployment",
        description="deployment: the stage has replicas and a scale of its own. driver: it runs in the driver's replica "
        "without a hop, and is no deployment.",
    )


class ExpanderConfig(_Config):
    engine: str = "small"
    variants: int = Field(default=2, ge=0, le=8)
    steps: tuple[Step, ...] | None = Field(
        default=None,
        description="What the model decides; none: all of it where its engine is capable, else rewrite and expand.",
    )
    skip_simple: bool = Field(default=True, description="A simple lookup (assay/simple.py) is searched as it stands.")
    fields_per_call: int = Field(
        default=32,
        ge=1,
        le=200,
        description="Where the buckets have more fields, they are chosen in a call of its own.",
    )
    max_tokens: int | None = Field(
        default=None,
        ge=16,
        le=4096,
        description="none: 128 for a rewrite and two variants, 40 for each more, 4096 for a whole plan; a quarter of the "
        "model's context at the most. Its texts and lists are bounded so that it ends within them.",
    )
    timeout_s: float = Field(default=8, gt=0, le=600)
    implementation: str | None = _implementation()
    placement: Placement = _placement()

    @property
    def decided(self) -> frozenset[Step]:
        return frozenset(("rewrite", "expand") if self.steps is None else self.steps)

    @property
    def tokens(self) -> int:
        whole = self.decided - {"rewrite", "expand"}
        return self.max_tokens or (4096 if whole else 128 + 40 * max(0, self.variants - 2))

    def of(self, engine: AnyEngine) -> "ExpanderConfig":
        """Its own steps, or those that the engine is capable of."""
        if self.steps is not None or not engine.is_capable:
            return self
        return self.model_copy(update={"steps": STEPS})


class RetrieverConfig(_Config):
    device: Literal["cpu", "cuda"] = Field(
        default="cpu",
        description="cuda: vectors lie on the GPU of the replica, whose allocation the embedder shares, and all allowed rows "
        "are compared there. Needs requirements/gpu.txt, and num_gpus in the Retriever's ray_actor_options.",
    )
    fetch: int = Field(default=100, ge=1, le=1000, description="Candidates taken from each leg for each query.")
    fusion: Fusion = "weighted"
    dense_weight: float = Field(
        default=0.65,
        ge=0,
        le=1,
        description="Share of the dense leg; the sparse leg has the rest. minmax: of every query. weighted: of a query "
        "whose two score curves are typical; the next two say how far others depart from it. rrf has none.",
    )
    by_standing: float = Field(
        default=0.4, ge=0, le=5, description="weighted: more dense share per unit that the best cosine stands out."
    )
    by_lead: float = Field(
        default=0.9, ge=0, le=5, description="weighted: less dense share per unit by which BM25's best leads its tenth."
    )
    lead_weight: float = Field(
        default=0.0,
        ge=0,
        le=5,
        description="What passages gain at the most by the beginning of their document being about the question, where the "
        "best passage's own score is 1; 0: leads are not looked at. docs/search.md.",
    )
    lead_documents: int = Field(
        default=3,
        ge=1,
        le=100,
        description="Documents, and stretches of very long ones, that are looked into by their leads.",
    )
    link_hop: bool = Field(default=True, description="Whether a request may have the link hop; answers then do.")
    rrf_k: int = Field(default=60, ge=1, le=1000)
    timeout_s: float = Field(default=10, gt=0, le=600)
    implementation: str | None = _implementation()


class GradeConfig(Logistic):
    """P(enough) over the features of ``assay.features``. These defaults use no model, and hold until one is calibrated."""

    intercept: float = -0.5311
    weights: Mapping[str, float] = {
        "words": -1.2366,
        "word_coverage": -0.4384,
        "name_coverage": 1.286,
        "phrase_coverage": 1.0071,
        "linked": 0.9043,
        "link_gain": 7.1422,
        "two_coverage": 1.8825,
        "asked_links": -1.2809,
        "bridge": 1.4377,
        "sentence_lead": 1.7962,
        "pairs": 0.7272,
        "kind": 1.1701,
        "denied": -1.6328,
        "similarity": 2.5723,
    }
    means: Mapping[str, float] = {
        "words": 0.7979,
        "word_coverage": 0.7341,
        "name_coverage": 0.7957,
        "phrase_coverage": 0.7546,
        "linked": 0.3354,
        "link_gain": 0.0138,
        "two_coverage": 0.0958,
        "asked_links": 0.2475,
        "bridge": 0.1262,
        "sentence_lead": 0.1652,
        "pairs": 0.3406,
        "kind": 0.9554,
        "denied": 0.0235,
        "similarity": 0.5467,
    }
    about: Logistic = Field(
        default=Logistic(
            intercept=2.5838,
            weights={"word_coverage": 3.76, "name_coverage": 2.9836, "similarity": 10.5487},
            means={"word_coverage": 0.7341, "name_coverage": 0.7957, "similarity": 0.5467},
        ),
        description="P(the evidence is about what is asked): over what says so of any collection, not of steps and links.",
    )
    holds: Logistic = Field(
        default=Logistic(
            intercept=-0.2149,
            weights={
                "pairs": 1.333,
                "sentence_lead": 1.6711,
                "kind": 1.2129,
                "no_denial": -3.3369,
                "denies": -1.4243,
                "numbers": 2.0817,
                "similarity": 3.1095,
            },
            means={
                "pairs": 0.2715,
                "sentence_lead": 0.3274,
                "kind": 0.9528,
                "no_denial": 0.0795,
                "denies": 0.0956,
                "numbers": 0.947,
                "similarity": 0.5482,
            },
        ),
        description="P(it says what is asked, if it is about it), and not only something near to it.",
    )
    enough: float = Field(
        default=0.8,
        ge=0,
        le=1,
        description="From this P(enough) on the search ends. A further round is searches, and no model: cheap beside an answer "
        "that lacks a step.",
    )
    min_answer: float = Field(
        default=0.4,
        ge=0,
        le=1,
        description="When the search ends with less than this of ``about``, the answer says that nothing was found.",
    )
    min_holds: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="The same for ``holds``, where the evidence is not ``enough``; 0: it is not asked. docs/calibration.md.",
    )


class SupportConfig(Logistic):
    """P(a quote bears a claim) over ``assay.support``; what contradicts its quote has none. It uses no model."""

    intercept: float = 0.5071
    weights: Mapping[str, float] = {"covered": 0.7245, "covered_by_quote": 1.8487, "neighbours": 1.7127}
    means: Mapping[str, float] = {"covered": 0.7169, "covered_by_quote": 0.68, "neighbours": 0.2961}


RerankMethod = Literal["title", "likelihood", "pointwise", "score", "listwise"]


class RerankerConfig(_Config):
    engine: str = "small"
    method: RerankMethod = Field(
        default="likelihood",
        description="title: of the passage's title after a question of one step, cheapest, else likelihood; likelihood: of the "
        "question after the passage; both are right for small models; pointwise: yes or no; score: expected grade from 0 to "
        "10; listwise: one call for all passages, for large models.",
    )
    calibration: str = Field(
        default="auto",
        description="'auto': configs/calibration/<model>.json, where there is one for the model's weights; 'none'; or a file.",
    )
    threshold: float | None = Field(
        default=None,
        description="Passages with less are dropped: nats (title), nats per token (likelihood), or 0 to 1 (the others).",
    )
    candidates: int = Field(default=8, ge=1, le=200, description="The best of the fused list, scored by the model.")
    passage_tokens: int = Field(default=96, ge=16, le=8192)
    weight: float = Field(
        default=0.5,
        ge=-1,
        le=1,
        description="Share of the model's value; the fused score has the rest. Below 0 its order is turned round.",
    )
    support: Literal["words", "model"] = Field(
        default="words",
        description="Whether a written sentence is borne out: by the share of its words in its quote, or also by what this "
        "engine makes of the two (for models that judge well in words).",
    )
    timeout_s: float = Field(default=15, gt=0, le=600)
    implementation: str | None = _implementation()
    placement: Placement = _placement()
    grade: GradeConfig = GradeConfig()
    support_weights: SupportConfig = SupportConfig()
    uncalibrated: str = Field(default="", description="Set when the graph is built: why the model has no calibration.")


class GeneratorConfig(_Config):
    engine: str = "small"
    style: Literal["extract", "prose", "list", "table"] = Field(
        default="extract", description="What 'auto' means for this model; a plan may choose another of the last three."
    )
    candidates: int = Field(default=8, ge=1, le=100, description="extract: sentences that the model scores.")
    sentences: int = Field(default=3, ge=1, le=10, description="Most sentences of an answer.")
    items: int = Field(default=12, ge=1, le=100, description="Most items of a list, and rows of a table.")
    evidence_tokens: int = Field(
        default=1200, ge=64, le=1_000_000, description="written styles: the evidence's share of the prompt."
    )
    timeout_s: float = Field(default=30, gt=0, le=600)
    implementation: str | None = _implementation()
    placement: Placement = _placement()


class LoopConfig(_Config):
    """Defaults of a request's budget, and its upper bounds."""

    mode: Mode = Field(
        default="auto", description="What a request's auto means. auto: the plan decides between pipeline and agentic."
    )
    rounds: int = Field(default=3, ge=1, le=20)
    tool_calls: int = Field(default=6, ge=1, le=100)
    deadline_s: float = Field(default=60, gt=0, le=3600)
    answer_tokens: int = Field(default=400, ge=16, le=32_000)
    tokens: int = Field(
        default=500_000,
        ge=1000,
        le=2**53,
        description="Of all prompts and outputs. No model is asked once they are used up; the last call may go beyond.",
    )
    reserve_s: float = Field(
        default=12, ge=0, le=600, description="Kept back from the search for answering and verifying."
    )
    evidence: int = Field(default=10, ge=1, le=100, description="Passages kept per round.")
    answer_evidence: int = Field(default=5, ge=1, le=100, description="Passages that the generator sees.")
    overload: int = Field(
        default=100, ge=1, le=1_000_000, description="Documents above which a question for all of a kind is asked back."
    )
    per_document: int = Field(default=4, ge=1, le=100, description="Most passages of one document in the evidence.")
    min_support: float = Field(default=0.5, ge=0, le=1, description="A sentence with less support is not shown.")


class WebConfig(_Config):
    """``web_search``: off without an endpoint."""

    endpoint: str | None = Field(
        default=None,
        pattern=r"^https?://[^\s@]+$",
        description="Answers ?q=...&format=json with results of url, title and content, as SearXNG does.",
    )
    private_endpoint: bool = Field(
        default=False, description="The endpoint itself may have a private address; what it redirects to may not."
    )
    key_env: str | None = Field(
        default=None, pattern=r"^[A-Z][A-Z0-9_]{0,99}$", description="Variable of the endpoint's bearer key."
    )
    results: int = Field(default=5, ge=1, le=20)
    timeout_s: float = Field(default=8, gt=0, le=60)


class ToolsConfig(_Config):
    """Mode ``tools``: who holds the conversation, what may be called, and how much. A request's budget may tighten it."""

    engine: str | None = Field(default=None, description="Must be able to call tools; none: the generator's.")
    rounds: int = Field(default=10, ge=1, le=10, description="Turns of the model; the last one must answer.")
    calls: int = Field(default=16, ge=1, le=100, description="Calls in all, the first search among them.")
    evidence_tokens: int = Field(
        default=6000,
        ge=256,
        le=1_000_000,
        description="Of passages in the conversation; what does not fit is left out.",
    )
    turn_s: float = Field(default=60, gt=0, le=600, description="One turn.")

    enabled: tuple[str, ...] | None = Field(default=None, description="Of the built-in tools; none: all of them.")
    own: tuple[Annotated[str, Field(pattern=_CLASS)], ...] = Field(
        default=(), description="Tools of your own, each a 'module:Class': docs/agent.md."
    )
    web: WebConfig = WebConfig()
    timeout_s: float = Field(default=15, gt=0, le=600, description="One call.")


class AnswersConfig(_Config):
    """Where answers are kept with all that led to them: for ``GET /v1/answers/{id}``, ``replay`` and clarifications."""

    store: Literal["sqlite", "postgresql"] = Field(
        default="sqlite",
        description="sqlite: a file, of processes of one machine. Drivers on several nodes need postgresql.",
    )
    path: str = Field(default=".assay/answers.db", description="sqlite: the file.")
    dsn_env: str = Field(
        default="ASSAY_DATABASE_URL",
        pattern=r"^[A-Z][A-Z0-9_]*$",
        description="postgresql: the environment variable that holds the URL, with its password.",
    )
    keep: int = Field(default=10_000, ge=0, le=10_000_000, description="The last answers; 0 keeps none.")
    days: float = Field(default=30, gt=0, le=3650)


class ConversationsConfig(_Config):
    """Where conversations are kept. Replicas on several nodes need ``postgresql``, or a file that all of them see."""

    store: Literal["memory", "sqlite", "postgresql"] = Field(
        default="sqlite", description="memory: of each ingress replica, gone with it."
    )
    path: str = Field(default=".assay/conversations.db", description="sqlite: the file.")
    dsn_env: str = Field(
        default="ASSAY_DATABASE_URL",
        pattern=r"^[A-Z][A-Z0-9_]*$",
        description="postgresql: the environment variable that holds the URL, with its password.",
    )
    messages: int = Field(default=20, ge=2, le=100, description="Most messages that go with the next question.")
    tokens: int = Field(default=2_000, ge=16, le=1_000_000, description="Most tokens of them, as estimated.")
    lease_s: float = Field(
        default=30, gt=0, le=600, description="A turn whose replica does not say for so long that it lives is given up."
    )


class DocumentsConfig(_Config):
    """Uploads over HTTP. Each limit is of one ingress replica, but for what is waiting."""

    path: str = Field(
        default=".assay/uploads",
        description="Folder of jobs and their files; all ingress replicas and the ingester see it.",
    )
    max_file_bytes: int = Field(default=100_000_000, ge=1, le=10_000_000_000)
    max_body_bytes: int = Field(default=500_000_000, ge=1, le=100_000_000_000)
    max_files: int = Field(default=1_000, ge=1, le=100_000, description="Of one upload.")
    upload_s: float = Field(default=600, gt=0, le=86_400, description="A body must have arrived within this.")
    max_uploads: int = Field(default=4, ge=1, le=1_000, description="Arriving at once.")
    max_streams: int = Field(default=200, ge=1, le=100_000, description="Of the events of jobs, open at once.")
    max_waiting: int = Field(default=100, ge=1, le=100_000, description="Jobs that have not ended.")
    keep_days: float = Field(default=7, gt=0, le=3650, description="What is known of a job that has ended.")


class ExtractionConfig(_Config):
    """Metadata that a model reads out of documents as they are ingested: docs/buckets.md."""

    engine: str | None = Field(default=None, description="A name of engines; none: fields are not extracted.")
    tokens: int = Field(default=1200, ge=64, le=100_000, description="Of a document: title, headings, its beginning.")
    concurrency: int = Field(default=8, ge=1, le=256, description="Documents that the model reads side by side.")
    timeout_s: float = Field(default=60, gt=0, le=3600, description="For one document.")


class StreamsConfig(_Config):
    """Streams that a client may take up again after its connection dropped: those asked for with ``"resumable": true``."""

    kept_s: float = Field(
        default=300, gt=0, le=86_400, description="How long one can be taken up after its last event."
    )
    grace_s: float = Field(
        default=30,
        gt=0,
        le=3600,
        description="An answer that nobody has listened to for so long is given up, and its engine is free.",
    )
    max_chars: int = Field(
        default=64_000_000,
        ge=100_000,
        le=10**11,
        description="Of all events that are kept; the oldest answers make room.",
    )
    shared: bool = Field(
        default=False,
        description="Kept also in a deployment of their own, Streams: needed where the Ingress has several replicas.",
    )


class AuditConfig(_Config):
    """Who asked what, which documents were read for it, which were cited: docs/security.md."""

    folder: str | None = Field(
        default=".assay/audit", description="Each replica has files of its own in it; null: no audit log is written."
    )
    max_bytes: int = Field(
        default=10_000_000, ge=10_000, le=10_000_000_000, description="Of a file; then the next begins."
    )
    files: int = Field(default=10, ge=2, le=10_000, description="Of a replica and kind: the oldest is deleted.")
    waiting: int = Field(
        default=10_000,
        ge=1,
        le=1_000_000,
        description="Lines that the disk has not taken yet; at more, requests get a 503.",
    )
    texts: bool = Field(default=False, description="Also questions, answers, filters and names of files.")


class IngressConfig(_Config):
    max_body_bytes: int = Field(default=1_000_000, ge=1000, le=1_000_000_000)
    max_ongoing: int = Field(
        default=32,
        ge=1,
        le=10_000,
        description="Questions in progress per ingress replica; as many of handles, and searches.",
    )

    @property
    def max_listening(self) -> int:
        """Streams that were taken up, open at once."""
        return 2 * self.max_ongoing

    @property
    def max_requests(self) -> int:
        """All that a replica takes at once of what can last. Serve's own limit must be above it: what Serve refuses, or lets
        wait, has neither our errors nor our health checks."""
        documents = self.documents
        return 3 * self.max_ongoing + self.max_listening + documents.max_uploads + documents.max_streams

    heartbeat_s: float = Field(default=10, gt=0, le=300)
    conversations: ConversationsConfig = ConversationsConfig()
    streams: StreamsConfig = StreamsConfig()
    documents: DocumentsConfig = DocumentsConfig()
    keys: str = Field(default=".assay/keys.json", description="File of the API keys: `python -m assay keys`.")
    audit: AuditConfig = AuditConfig()
    keys_required: bool = Field(
        default=False,
        description="Set it wherever others can connect, also through a proxy on this machine: nothing starts without a key.",
    )


class TelemetryConfig(_Config):
    otlp_endpoint: str | None = Field(default=None, description="OTLP/HTTP collector for spans; none: no spans.")


def _one_small_engine() -> dict[str, AnyEngine]:
    return {"small": EngineConfig()}


class AppConfig(_Config):
    """What ``graph.build_app`` takes: ``args`` of the Serve YAML."""

    engines: dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,39}$")], AnyEngine] = Field(
        default_factory=_one_small_engine, min_length=1
    )
    cache: str = Field(default="~/.cache/assay", description="Folder of the prepared models.")
    prompts: str | None = Field(default=None, description="Folder of templates that replace those of the same name.")
    index: IndexConfig = IndexConfig()
    expander: ExpanderConfig = ExpanderConfig()
    retriever: RetrieverConfig = RetrieverConfig()
    reranker: RerankerConfig = RerankerConfig()
    generator: GeneratorConfig = GeneratorConfig()
    loop: LoopConfig = LoopConfig()
    tools: ToolsConfig = ToolsConfig()
    answers: AnswersConfig = AnswersConfig()
    extraction: ExtractionConfig = ExtractionConfig()
    ingress: IngressConfig = IngressConfig()
    telemetry: TelemetryConfig = TelemetryConfig()
    niceness: int = Field(
        default=0,
        ge=0,
        le=19,
        description="Of Driver and Retriever: how far they stand back for the doors and the engines of their machine.",
    )

    @property
    def planning(self) -> ExpanderConfig:
        """The expander's, with the steps that its engine is capable of."""
        return self.expander.of(self.engines[self.expander.engine])

    @property
    def agent(self) -> str | None:
        """The engine that mode ``tools`` talks to; none where it cannot call tools."""
        name = self.tools.engine or self.generator.engine
        return name if "tools" in self.engines[name].can else None

    def bounds(self, mode: str) -> LoopConfig:
        """The bounds of a request's budget in a mode."""
        if mode != "tools":
            return self.loop
        return self.loop.model_copy(update={"rounds": self.tools.rounds, "tool_calls": self.tools.calls})

    @model_validator(mode="after")
    def _agent_can(self) -> "AppConfig":
        name = self.tools.engine
        if name is not None and name not in self.engines:
            raise ValueError(f"tools.engine is '{name}', but engines has {sorted(self.engines)}")
        if (name is not None or self.loop.mode == "tools") and self.generator.engine in self.engines and not self.agent:
            need = "mode 'tools' needs it: set tool_parser, or name another engine for tools.engine"
            raise ValueError(_lacks("tools", name or self.generator.engine, "tools", need))
        return self

    @model_validator(mode="after")
    def _engines_exist(self) -> "AppConfig":
        for stage in ("expander", "reranker", "generator"):
            name = getattr(self, stage).engine
            if name not in self.engines:
                raise ValueError(f"{stage}.engine is '{name}', but engines has {sorted(self.engines)}")
            if not getattr(self, stage).implementation:
                self._check_engine(stage, name)
        if (engine := self.extraction.engine) is not None:
            if engine not in self.engines:
                raise ValueError(f"extraction.engine is '{engine}', but engines has {sorted(self.engines)}")
            if not self.engines[engine].can & {"json_schema", "json_object"}:
                raise ValueError(_lacks("extraction", engine, "json_schema", "values are JSON; name another engine"))
        return self

    def _check_engine(self, stage: str, name: str) -> None:
        """What a stage needs of its engine is known now: at run time each of its calls would fall back."""
        can = self.engines[name].can
        if stage == "expander" and not can & {"json_schema", "json_object"}:
            raise ValueError(
                _lacks(stage, name, "json_schema", "plans are JSON; name another engine for expander.engine")
            )
        if stage == "reranker" and self.reranker.method != "listwise" and "score" not in can:
            need = f"method '{self.reranker.method}' needs prompt_logprobs; choose reranker.method 'listwise'"
            raise ValueError(_lacks(stage, name, "score", f"{need}, or an engine of kind 'vllm' or preset 'vllm'"))
        if stage == "reranker" and self.reranker.support == "model" and "score" not in can:
            raise ValueError(_lacks(stage, name, "score", "support 'model' needs it; choose reranker.support 'words'"))
        if stage == "reranker" and self.reranker.method == "listwise" and not can & {"json_schema", "json_object"}:
            raise ValueError(
                _lacks(stage, name, "json_schema", "grades are JSON; name another engine for reranker.engine")
            )
        if stage == "generator" and self.generator.style == "extract" and "score" not in can:
            need = (
                "style 'extract' ranks sentences by likelihood; choose generator.style 'prose', or an engine that can"
            )
            raise ValueError(_lacks(stage, name, "score", need))


def _lacks(stage: str, engine: str, what: str, why: str) -> str:
    return f"{stage}.engine '{engine}' cannot do '{what}': {why}"
