"""The shapes that every door shares (HTTP, SSE, Python handle): requests, responses and their parts, with bounds."""

import hashlib
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    GetJsonSchemaHandler,
    PrivateAttr,
    StringConstraints,
    Tag,
    field_serializer,
    field_validator,
)
from pydantic.json_schema import JsonSchemaValue

from assay.groups import Groups

MAX_QUESTION_CHARS = 8_000

Mode = Literal["auto", "pipeline", "agentic", "tools"]
WrittenStyle = Literal["prose", "list", "table"]
Style = Literal["auto", "extract", "prose", "list", "table"]
Intent = Literal["answer", "list", "summarise", "compare", "compute"]
Strategy = Literal["keyword", "semantic", "hybrid"]
Fusion = Literal["rrf", "minmax", "weighted"]
# What a plan may decide: whether to search, the standalone question, buckets, filters, parts, variants, and the answer's form.
Step = Literal["gate", "rewrite", "route", "filters", "decompose", "expand", "format"]
STEPS: tuple[Step, ...] = get_args(Step)
TerminatedBy = Literal["answered", "clarify", "no_evidence", "rounds", "deadline", "tool_budget", "cancelled", "failed"]
AnswerStatus = Literal["answered", "clarify", "no_evidence", "partial", "failed"]
Include = Literal["trace", "evidence", "tool_calls", "state"]

# The pattern is for readers of the JSON schema; ``_speakable`` is what refuses, with a message.
Question = Annotated[
    str,
    StringConstraints(min_length=1, max_length=MAX_QUESTION_CHARS),
    Field(json_schema_extra={"pattern": r"^[^\u0000]*[^\s\u0000][^\u0000]*$"}),
]
Name = Annotated[str, StringConstraints(min_length=1, max_length=200)]


class Shape(BaseModel):
    """Base of all shapes: frozen, and a key that is not known is an error, never ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid")


# ---- filters --------------------------------------------------------------------------------------------------------

FilterOp = Literal["=", "!=", "<", "<=", ">", ">=", "in", "like", "is_null", "between"]
Scalar = str | int | float | bool
FieldType = Literal["text", "number", "date", "boolean", "list"]

_ORDER: tuple[FilterOp, ...] = ("<", "<=", ">", ">=", "between")
OPS: dict[FieldType, tuple[FilterOp, ...]] = {
    "text": ("=", "!=", "in", "like", "is_null"),
    "number": ("=", "!=", *_ORDER, "in", "is_null"),
    "date": ("=", "!=", *_ORDER, "in", "is_null"),
    "boolean": ("=", "!=", "is_null"),
    "list": ("=", "!=", "in", "like", "is_null"),
}


class Predicate(Shape):
    """One test of one field. ``in`` takes a list, ``between`` two bounds, ``is_null`` true or false."""

    field: Name
    op: FilterOp
    value: Scalar | list[Scalar]

    @field_validator("value", mode="before")
    @classmethod
    def _plain(cls, value: object) -> object:
        """One message instead of one per member of the union; and no whole number that no column can hold."""
        for item in value if isinstance(value, list) else [value]:
            if not isinstance(item, str | int | float):
                raise ValueError("must be text, a number, true or false, or a list of these")
            if isinstance(item, int) and not -(2**63) <= item < 2**63:
                raise ValueError("must fit into 64 bits")
        return value


class And(Shape):
    and_: list["Filter"] = Field(alias="and", min_length=1, max_length=32)
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Or(Shape):
    or_: list["Filter"] = Field(alias="or", min_length=1, max_length=32)
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Not(Shape):
    not_: "Filter" = Field(alias="not")
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


def _filter_kind(value: object) -> str | None:
    """The one member of the union that was meant, so that a mistake is told once and not once per member."""
    if isinstance(value, Shape):
        return type(value).__name__
    if not isinstance(value, dict):
        return None
    for kind in ("and", "or", "not"):
        if kind in value or f"{kind}_" in value:
            return kind.capitalize()
    return "Predicate"


Filter = Annotated[
    Annotated[Predicate, Tag("Predicate")]
    | Annotated[And, Tag("And")]
    | Annotated[Or, Tag("Or")]
    | Annotated[Not, Tag("Not")],
    Discriminator(
        _filter_kind,
        custom_error_type="filter_kind",
        custom_error_message='must be {"field", "op", "value"}, {"and": [...]}, {"or": [...]} or {"not": ...}',
    ),
]


def _none_if_empty(filters: object) -> object:
    """``{}`` is how a clarification's choice says "without a filter"; it can be sent back as it came."""
    return None if filters == {} else filters


class _OrEmpty:
    """The same, for readers of the schema."""

    def __get_pydantic_json_schema__(self, core: Any, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler(core)
        return {**schema, "anyOf": [*schema["anyOf"], {"type": "object", "maxProperties": 0}]}


# ---- parts of an answer ---------------------------------------------------------------------------------------------


class Usage(Shape):
    llm_calls: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            llm_calls=self.llm_calls + other.llm_calls,
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
        )


class Degraded(Shape):
    """A fallback that was taken, by name: the stage that failed, why, and what was done instead."""

    stage: str
    reason: str
    fallback: str


class Citation(Shape):
    """Where a sentence's claim stands. ``number`` is one per document per answer; ``span`` counts characters of the
    document's text, and that text at ``span`` is ``quote``. ``untrusted``: it is from the web, not of the collection;
    ``hidden``: no reader of the file sees some of the passage, so it is not to be trusted either. A passage that is no chunk
    of the index has a negative ``chunk_id``."""

    number: int
    slot: str
    doc_id: str
    chunk_id: int
    bucket: str
    title: str
    uri: str
    page: int | None = None
    heading: list[str] = []
    span: tuple[int, int]
    quote: str
    support: float = Field(default=1.0, ge=0, le=1, description="How far the quote bears the sentence.")
    untrusted: bool = False
    hidden: bool = False


class Source(Shape):
    """A document that an answer cites. Its ``number`` is what the answer's marks say, and never changes within the answer."""

    number: int
    doc_id: str
    bucket: str
    title: str
    uri: str


class Sentence(Shape):
    text: str
    citations: list[int]
    support: float = Field(ge=0, le=1)


class Answer(Shape):
    """``style``: ``statement`` says that nothing was found; ``plain`` was written without a search, and cites nothing.
    ``missing``: what was asked and is not in the sentences that could be borne out."""

    text: str
    sentences: list[Sentence] = []
    style: Literal["extract", "prose", "list", "table", "statement", "plain"]
    language: str | None = Field(default=None, description="ISO 639-1; null where nothing tells.")
    missing: list[str] = []


class ConflictSide(Shape):
    """What one document says. ``number``: that of its citation; ``date``: the document's, where its metadata tells."""

    number: int
    slot: str
    value: str
    quote: str
    date: str | None = None


class Conflict(Shape):
    """Documents that answer otherwise than each other, each of them cited. ``newest``: the ``number`` of the side whose
    document is the newest, where all have a date."""

    kind: Literal["number", "date", "name", "negation"]
    sides: list[ConflictSide]
    newest: int | None = None


class Choice(Shape):
    label: str
    filters: dict[str, Any] = {}
    count: int | None = None


class Clarification(Shape):
    type: Literal["no_results", "overload", "ambiguous"]
    message: str
    blocking: Predicate | And | Or | Not | None = None
    count_without: int | None = None
    choices: list[Choice] = []
    resume: str | None = Field(default=None, description="Send it back with the reply: the same plan goes on.")


class ToolCall(Shape):
    """One call, for the audit log. ``filters``: what held for it, the request's own and the call's; ``outcome``: ``ok``,
    ``repeated`` (not made again), or the code of the fault. Of the search that begins beside the plan, where the plan asks for
    another: ``unused``, or ``stand_in`` where that one failed; it counts towards no bound."""

    tool: str
    arguments: dict[str, Any]
    filters: Predicate | And | Or | Not | None = None
    index_version: str | None = None
    hits: int
    duration_ms: float
    outcome: str


class TraceStep(Shape):
    step: int
    stage: str
    summary: str


class EvidenceRef(Shape):
    """A passage that was found. ``rank``: its place, from 1, among all of them, of which an answer is made of the first
    ``loop.answer_evidence``; ``span``: its characters in the document's text; ``untrusted`` and
    ``hidden`` as of ``Citation``."""

    slot: str
    chunk_id: int
    doc_id: str
    title: str
    uri: str = ""
    span: tuple[int, int] = (0, 0)
    rank: int = 0
    score: float
    sources: list[str]
    round: int
    untrusted: bool = False
    hidden: bool = False


# ---- ask ------------------------------------------------------------------------------------------------------------


class Turn(Shape):
    role: Literal["user", "assistant"]
    content: Annotated[str, StringConstraints(max_length=32_000)]


def whole(number: object) -> object:
    """JSON knows one kind of number, so 3.0 is a whole one, also for doors that convert nothing else."""
    return int(number) if isinstance(number, float) and number.is_integer() else number


class AskBudget(Shape):
    """Tightens the configured budget; a value above the configured one is an error that names the bound."""

    rounds: int | None = Field(default=None, ge=1, le=100)
    tool_calls: int | None = Field(default=None, ge=1, le=1000)
    deadline_s: float | None = Field(default=None, gt=0, le=3600, allow_inf_nan=False)
    answer_tokens: int | None = Field(default=None, ge=1, le=100_000)
    tokens: int | None = Field(
        default=None,
        ge=1,
        le=2**53,
        description="Of all prompts and outputs. No model is asked once they are used up; the last call may go beyond.",
    )

    _whole = field_validator("rounds", "tool_calls", "answer_tokens", "tokens", mode="before")(whole)


class AskOptions(Shape):
    expand: bool = True
    link_hop: bool = True
    rerank: bool = True
    self_correct: bool = Field(
        default=True, description="A sentence that its citations do not bear out is searched for once more."
    )
    clarify: bool = Field(default=True, description="Whether it may ask back; if not, it answers with what there is.")


def link_follows(legs: list[str]) -> list[str]:
    """Of a field ``legs``, for pydantic."""
    if "link" in legs and "dense" not in legs:
        raise ValueError("link weighs what it finds by the dense leg, so it needs dense beside it")
    return legs


def _speakable(text: str) -> str:
    """Refuse text that no document can hold: blank, NUL, or lone surrogates (which cannot be sent as UTF-8)."""
    if not text.strip():
        raise ValueError("must not be blank")
    if "\x00" in text:
        raise ValueError("must not contain NUL")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("must be valid Unicode without lone surrogates") from None
    return text


class Asked(Shape):
    """What somebody asks. The groups that they hold are no field: a door says so, from the key, and no body can."""

    _groups: Groups = PrivateAttr(())
    _owner: str = PrivateAttr("")

    @property
    def owner(self) -> str:
        """Who may read the answer again. No field either."""
        return self._owner

    def owned_by(self, owner: str) -> Self:
        request = self.model_copy()
        request._owner = owner
        return request

    @property
    def cache_salt(self) -> str | None:
        """By which an engine's prefix cache is divided, so that no delay tells one owner how another's prompts begin; None
        without keys."""
        return hashlib.sha256(f"cache of {self._owner}".encode()).hexdigest()[:32] if self._owner else None

    @property
    def groups(self) -> Groups:
        return self._groups

    def seen_by(self, groups: Groups) -> Self:
        request = self.model_copy()
        request._groups = groups
        return request


class AskRequest(Asked):
    """A question. Only ``question`` is required; every other default, and its upper bound, is in the config."""

    question: Question
    mode: Mode = "auto"
    buckets: list[Name] = Field(default=[], max_length=64)
    filters: Annotated[Filter | None, BeforeValidator(_none_if_empty), _OrEmpty()] = None
    history: list[Turn] = Field(default=[], max_length=100)
    top_k: int | None = Field(default=None, ge=1, le=100)
    style: Style = "auto"
    budget: AskBudget = AskBudget()
    options: AskOptions = AskOptions()
    include: list[Include] = Field(default=[], max_length=4)
    resume: Name | None = Field(
        default=None,
        description="Of a clarification: `question` is then the reply to it, in words or as the label of a choice.",
    )
    stream: bool = False
    resumable: bool = Field(
        default=False,
        description="Of a stream: when the connection drops the answer goes on for a while, and can be taken up again.",
    )

    _most_tokens: int | None = PrivateAttr(None)

    _question = field_validator("question")(_speakable)
    _whole = field_validator("top_k", mode="before")(whole)

    @property
    def most_tokens(self) -> int | None:
        """What OpenAI's clients bound an answer by. Unlike a bound of the budget it may be more than the config has."""
        return self._most_tokens

    def of_at_most(self, answer_tokens: int | None) -> Self:
        request = self.model_copy()
        request._most_tokens = answer_tokens
        return request

    def within(self, answer_tokens: int) -> Self:
        """With that bound in its budget, where an answer may have so many tokens."""
        if self._most_tokens is None:
            return self
        most = min(self._most_tokens, self.budget.answer_tokens or answer_tokens, answer_tokens)
        budget = self.budget.model_copy(update={"answer_tokens": most})
        return self.model_copy(update={"budget": budget})


class PlanState(Shape):
    """What was decided before the search. ``buckets`` and ``filters`` are the plan's own, within the request's."""

    query: str
    variants: list[str] = []
    sub_questions: list[str] = []
    buckets: list[str] = []
    filters: Predicate | And | Or | Not | None = None
    search: bool = True
    reason: str = ""
    intent: Intent | None = None
    strategy: Strategy = "hybrid"
    style: WrittenStyle | None = None


class AnswerState(Shape):
    """What the search knew when it ended. ``searched``: the queries that were run; ``bounds``: rounds, tool calls and seconds
    that it might use; ``seconds``: those that it used."""

    mode: Mode
    plan: PlanState
    searched: list[str] = []
    missing: list[str] = []
    follow_up: str | None = None
    bounds: AskBudget
    seconds: float


class AskResponse(Shape):
    id: str
    request_id: str
    status: AnswerStatus
    terminated_by: TerminatedBy
    answer: Answer | None
    citations: list[Citation] = []
    sources: list[Source] = []
    conflicts: list[Conflict] = []
    clarification: Clarification | None = None
    degraded: list[Degraded] = []
    index_version: str | None = None
    rounds: int = 0
    usage: Usage = Usage()
    timings_ms: dict[str, float] = {}
    trace: list[TraceStep] | None = None
    tool_calls: list[ToolCall] | None = None
    evidence: list[EvidenceRef] | None = None
    state: AnswerState | None = None


class AnswerRecord(Shape):
    """An answer as it is kept: what was asked, and the response with all that can be included in it."""

    created_at: str
    request: AskRequest
    response: AskResponse

    @field_serializer("request")
    def _as_sent(self, request: AskRequest) -> dict[str, Any]:
        """Without what was left out: asked again it must mean the same, also where defaults depend on what is resumed."""
        return request.model_dump(mode="json", by_alias=True, exclude_unset=True)


# ---- search ---------------------------------------------------------------------------------------------------------


class FacetValue(Shape):
    """How many documents have a value: a text, true or false, a year, or a number; of ranges of numbers, ``value`` is the lower
    bound and ``to`` the upper one, both of which belong to it."""

    value: str | bool | float
    to: float | None = None
    count: int


class Facet(Shape):
    """``missing``: documents without a value. ``more``: values that are not shown."""

    values: list[FacetValue]
    missing: int
    more: int = 0


class SearchRequest(Asked):
    question: Question
    buckets: list[Name] = Field(default=[], max_length=64)
    filters: Annotated[Filter | None, BeforeValidator(_none_if_empty), _OrEmpty()] = None
    legs: list[Literal["dense", "sparse", "link"]] = Field(
        default=["dense", "sparse"],
        min_length=1,
        max_length=3,
        description="link: also the documents that the question and the best hits mention by title; it needs dense.",
        # What ``link_follows`` refuses, for readers of the schema.
        json_schema_extra={"if": {"contains": {"const": "link"}}, "then": {"contains": {"const": "dense"}}},
    )
    fusion: Fusion | None = Field(default=None, description="How the legs' lists become one; none: as the config says.")
    rerank: bool = Field(
        default=False,
        description="Candidates are put in order by the reranker's model, and the best top_k kept. It needs a running graph.",
    )
    top_k: int = Field(default=10, ge=1, le=100)
    context_chars: int = Field(default=400, ge=0, le=4000)
    doc_id: Name | None = None
    facets: list[Name] = Field(default=[], max_length=16)

    _question = field_validator("question")(_speakable)
    _whole = field_validator("top_k", "context_chars", mode="before")(whole)

    _linked = field_validator("legs")(link_follows)


class SearchHit(Shape):
    """``span``: the chunk's place in its document's text; ``text``: what stands there at ``text_span``, around the match.

    ``score`` is what the hits are in order of: the fused one, or the reranker's where that was asked and no ``degraded`` says
    otherwise. ``similarity``: the passage's cosine to the question, where the dense leg ran."""

    chunk_id: int
    doc_id: str
    bucket: str
    title: str
    uri: str
    page: int | None
    heading: list[str]
    span: tuple[int, int]
    hidden: bool = Field(False, description="No reader of the file sees this text: an invisible layer, a hidden sheet.")
    score: float
    ranks: dict[str, int]
    similarity: float | None = None
    text: str
    text_span: tuple[int, int]


class SearchExplain(Shape):
    allowed_rows: int
    total_rows: int
    methods: dict[str, str]
    blocking: Predicate | And | Or | Not | None = None
    count_without: int | None = None


class SearchResponse(Shape):
    request_id: str
    hits: list[SearchHit]
    facets: dict[str, Facet] = {}
    explain: SearchExplain
    degraded: list[Degraded] = []
    index_version: str
    usage: Usage = Usage()
    timings_ms: dict[str, float] = {}


class Readiness(Shape):
    """``stages``: stage -> "ready", or what is wrong. ``degraded``: it serves, but something is missing (a segment)."""

    status: Literal["ready", "degraded", "unavailable"]
    stages: dict[str, str] = {}
    index_version: str | None = None
    reasons: list[str] = []


class ErrorBody(Shape):
    code: str
    message: str
    field: str | None = None
    allowed: list[str] = []
    request_id: str | None = None


class ErrorResponse(Shape):
    error: ErrorBody
