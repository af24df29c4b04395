"""The values that cross the borders between stages. All are frozen; shapes that users see are in ``assay.schemas``."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, Literal, TypeVar

from assay.groups import Groups
from assay.schemas import (
    STEPS,
    Citation,
    Degraded,
    Facet,
    FieldType,
    Filter,
    Fusion,
    Intent,
    Step,
    Strategy,
    Usage,
    WrittenStyle,
)

T = TypeVar("T")
Leg = Literal["dense", "sparse"]
LEGS: tuple[Leg, ...] = ("dense", "sparse")
Role = Literal["system", "user", "assistant", "tool"]
FinishReason = Literal["stop", "length", "abort"]
ToolChoice = Literal["auto", "required", "none"]
GenerateStyle = Literal["extract", "prose", "list", "table", "plain"]
Form = Literal["sentence", "item", "row", "header"]


def packed(kind: type[T]) -> type[T]:
    """Of values that go from replica to replica by the dozen: pickled as their fields alone, in half the time of the way that a
    dataclass with slots has of its own."""
    values = attrgetter(*(each.name for each in fields(kind)))  # type: ignore[arg-type]
    kind.__reduce__ = lambda self: (kind, values(self))  # type: ignore[method-assign]
    return kind


# ---- LLM port -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool that the model may call. ``parameters`` is the JSON schema (text) of its arguments, an object."""

    name: str
    description: str
    parameters: str


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A call that the model asks for. ``written`` is what it wrote; ``arguments`` that as a checked object.

    Arguments that are no JSON, or not of the tool's schema, are a ``fault``, and ``arguments`` is then empty: the text of
    the fault goes back to the model as the tool's result, and the conversation goes on.
    """

    id: str
    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    written: str = "{}"
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """One turn. An assistant's may hold the ``tool_uses`` it asked for (and the ``reasoning`` before them, which some
    endpoints want back); a tool's names the use that it answers by ``tool_use_id``."""

    role: Role
    content: str
    tool_uses: tuple[ToolUse, ...] = ()
    tool_use_id: str | None = None
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """One generation. At most one of ``json_schema``, ``regex``, ``choice`` and ``grammar`` (llguidance's Lark) constrains the
    output.

    Messages go through the model's chat template. ``max_tokens`` bounds the output; a caller must check
    ``finish_reason``: "length" means that a constrained output is cut off and unusable.
    """

    messages: tuple[Message, ...]
    max_tokens: int
    temperature: float = 0.0
    json_schema: str | None = None
    regex: str | None = None
    choice: tuple[str, ...] = ()
    grammar: str | None = None
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: ToolChoice = "auto"
    request_id: str = ""
    cache_salt: str | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """``text`` is the answer alone: what the model thought is in ``reasoning``, the calls that it asks for in ``tool_uses``."""

    text: str
    finish_reason: FinishReason
    usage: Usage
    reasoning: str = ""
    tool_uses: tuple[ToolUse, ...] = ()


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of a streamed generation. The last one carries ``finish_reason``, ``usage`` and all ``tool_uses``."""

    text: str = ""
    reasoning: str = ""
    tool_uses: tuple[ToolUse, ...] = ()
    finish_reason: FinishReason | None = None
    usage: Usage | None = None


@packed
@dataclass(frozen=True, slots=True)
class ScoreItem:
    """``context`` is given to the model as it is (no chat template); ``continuation`` is what is scored after it."""

    context: str
    continuation: str


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    items: tuple[ScoreItem, ...]
    request_id: str = ""
    cache_salt: str | None = None


@packed
@dataclass(frozen=True, slots=True)
class ItemScore:
    """Log-probability (natural log) of one continuation: the sum over its ``tokens`` tokens.

    ``fault`` is set instead when this item could not be scored; ``logprob`` is then NaN, never a made-up number.
    """

    logprob: float
    tokens: int
    fault: str | None = None
    each: tuple[float, ...] = ()
    """Of each token, where the engine says so."""

    @property
    def mean(self) -> float:
        return self.logprob / self.tokens if self.tokens else float("nan")


@dataclass(frozen=True, slots=True)
class Scores:
    """One ``ItemScore`` per item of the request, in its order."""

    items: tuple[ItemScore, ...]
    usage: Usage


# ---- index and retrieval --------------------------------------------------------------------------------------------


@packed
@dataclass(frozen=True, slots=True)
class Chunk:
    """A passage. ``document_text[start:end] == text``, in characters of the document's text as the store keeps it.

    ``hidden``: no reader of the file sees this text (an invisible layer, a hidden sheet), so it is not to be trusted.
    ``untrusted``: it is not of the collection but of the web. A passage that is no chunk of the index, such as a part of a
    document that was looked up, has a negative id."""

    id: int
    doc_id: str
    bucket: str
    title: str
    uri: str
    text: str
    start: int
    end: int
    ordinal: int
    heading: tuple[str, ...] = ()
    page: int | None = None
    hidden: bool = False
    untrusted: bool = False


@dataclass(frozen=True, slots=True)
class Context:
    """Text around a match, which may reach beyond its chunk: ``document_text[span[0]:span[1]] == text``."""

    text: str
    span: tuple[int, int]


@packed
@dataclass(frozen=True, slots=True)
class Hit:
    """A retrieved chunk. ``score`` is the fused score; ``ranks`` its rank (from 1) in each leg's list for its best query;
    ``similarity`` its cosine to the first query, None where the dense leg did not run."""

    chunk: Chunk
    score: float
    ranks: Mapping[str, int] = field(default_factory=dict)
    similarity: float | None = None
    context: Context | None = None


@dataclass(frozen=True, slots=True)
class SearchQuery:
    """All ``queries`` (the question first, then its variants) are run through each leg under the same filter and fused.

    ``facets``: fields whose values are to be counted; ``context_chars``: how much text around the match each hit is to have,
    None for none."""

    queries: tuple[str, ...]
    buckets: tuple[str, ...] = ()
    filters: Filter | None = None
    doc_id: str | None = None
    legs: tuple[Leg, ...] = ("dense", "sparse")
    link_hop: bool = False
    """Also what the question and the best hits mention by title; needs the dense leg."""
    fusion: Fusion | None = None
    """None: as the retriever's config says."""
    top_k: int = 10
    facets: tuple[str, ...] = ()
    context_chars: int | None = None
    request_id: str = ""
    groups: Groups = ()
    """Of whoever asks."""


@dataclass(frozen=True, slots=True)
class Explain:
    """How a search was answered. ``methods``: leg -> "exact" | "index" | "skipped" | "failed".

    When filters left no row, ``blocking`` is what emptied the set (an ``and`` where no single part of the filter did) and
    ``count_without`` the rows without it."""

    allowed_rows: int
    total_rows: int
    methods: Mapping[str, str] = field(default_factory=dict)
    blocking: Filter | None = None
    count_without: int | None = None


@dataclass(frozen=True, slots=True)
class SearchResult:
    hits: tuple[Hit, ...]
    index_version: str
    explain: Explain
    degraded: tuple[Degraded, ...] = ()
    facets: Mapping[str, Facet] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DocumentQuery:
    """A document, as long as it is within the buckets and the filter. At most one of ``span``, ``page`` (from 1) and
    ``heading`` says which part of it; none means from where its text begins, after front matter."""

    doc_id: str
    buckets: tuple[str, ...] = ()
    filters: Filter | None = None
    span: tuple[int, int] | None = None
    page: int | None = None
    heading: str | None = None
    max_chars: int = 4_000
    request_id: str = ""
    groups: Groups = ()


@dataclass(frozen=True, slots=True)
class DocumentInfo:
    """A document without its text. ``metadata``: the values that it has, by the fields of its bucket; dates as UTC instants
    in ISO 8601."""

    doc_id: str
    bucket: str
    title: str
    uri: str
    format: str
    bytes: int
    chunks: int
    ingested_at: str
    metadata: Mapping[str, str | float | bool | list[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DocumentText:
    """A part of a document's text: the characters of ``span``, of ``chars`` in all. ``hidden``: no reader of the file sees
    some of them."""

    document: DocumentInfo
    text: str
    span: tuple[int, int]
    chars: int
    hidden: bool = False


@dataclass(frozen=True, slots=True)
class Scope:
    """What a request may see: ``buckets`` (all of them where none is named) and ``filters``; of documents that name groups,
    those that name one of ``groups``."""

    buckets: tuple[str, ...] = ()
    filters: Filter | None = None
    groups: Groups = ()


@dataclass(frozen=True, slots=True)
class FieldInfo:
    """A field of a bucket's metadata, and how many of the bucket's documents have it. ``values``: of a text or a list, all that
    there are, where they are few; they are said only where they were asked for."""

    name: str
    type: FieldType
    required: bool
    description: str
    documents: int
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BucketInfo:
    name: str
    documents: int
    chunks: int
    description: str = ""
    fields: tuple[FieldInfo, ...] = ()


# ---- planning, evidence, grading ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """``buckets``: those that the question may be put to, with what is in them; a plan that should not choose among them has
    none. ``steps``: what may be decided for this question. ``today``: a date in ISO 8601, for "last year"."""

    question: str
    history: tuple[Message, ...] = ()
    buckets: tuple[BucketInfo, ...] = ()
    variants: int = 2
    steps: tuple[Step, ...] = STEPS
    today: str = ""
    request_id: str = ""
    cache_salt: str | None = None


@dataclass(frozen=True, slots=True)
class Entity:
    name: str
    role: str


@dataclass(frozen=True, slots=True)
class Plan:
    """``query`` is the standalone question; ``variants`` differ from it and from each other; ``sub_questions`` are searched on
    their own. ``buckets`` and ``filters`` narrow what the request allows, and can never widen it.

    ``search``: False where the question needs none, for the ``reason``. ``fault``: why the model's plan could not be used; the
    question itself then stands in its place. ``dropped``: parts of it that could not be used, each with why."""

    query: str
    variants: tuple[str, ...] = ()
    sub_questions: tuple[str, ...] = ()
    usage: Usage = Usage()
    fault: str | None = None
    search: bool = True
    reason: str = ""
    intent: Intent | None = None
    buckets: tuple[str, ...] = ()
    filters: Filter | None = None
    entities: tuple[Entity, ...] = ()
    topics: tuple[str, ...] = ()
    strategy: Strategy = "hybrid"
    style: WrittenStyle | None = None
    dropped: tuple[str, ...] = ()


@packed
@dataclass(frozen=True, slots=True)
class Gain:
    """By how many nats a passage makes the question more likely: each of its tokens, and the mean of them. Below zero the
    passage speaks against what is asked there."""

    mean: float
    each: tuple[float, ...]


@packed
@dataclass(frozen=True, slots=True)
class Evidence:
    """A chunk in a slot (E1, E2, ...) that keeps its name for the whole question. ``gain`` is None where the reranker did not
    score it by likelihood."""

    slot: str
    hit: Hit
    score: float
    round: int
    gain: Gain | None = None


@dataclass(frozen=True, slots=True)
class RerankRequest:
    """``gains``: whether a grade follows, which weighs those of the first; what only a grade needs is not asked without."""

    question: str
    hits: tuple[Hit, ...]
    keep: int
    request_id: str = ""
    cache_salt: str | None = None
    gains: bool = True


@packed
@dataclass(frozen=True, slots=True)
class Ranked:
    """One reranked hit. ``gain`` as in ``Evidence``."""

    hit: Hit
    score: float
    gain: Gain | None


@dataclass(frozen=True, slots=True)
class Reranked:
    """Best first, at most ``keep``. ``faults`` counts the passages that could not be scored and kept their fused order."""

    ranked: tuple[Ranked, ...]
    usage: Usage
    faults: int = 0


@dataclass(frozen=True, slots=True)
class GradeRequest:
    question: str
    evidence: tuple[Evidence, ...]
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class Grade:
    """Probabilities that sum to 1, the measured features behind them, and for "more" the query to try next, with those that are
    to be searched ``beside`` it, each by itself. ``p_about``, apart
    from these: whether the evidence is about what is asked at all, so that an answer can be made of it, whole or not.
    ``p_holds``: if it is, whether it says what is asked, and not only something near to it."""

    p_enough: float
    p_more: float
    p_clarify: float
    p_about: float
    features: Mapping[str, float]
    missing: tuple[str, ...] = ()
    follow_up: str | None = None
    beside: tuple[str, ...] = ()
    usage: Usage = Usage()
    p_holds: float = 1.0

    @property
    def verdict(self) -> Literal["enough", "more", "clarify"]:
        best = max(self.p_enough, self.p_more, self.p_clarify)
        return "enough" if best == self.p_enough else "more" if best == self.p_more else "clarify"


@dataclass(frozen=True, slots=True)
class Claim:
    """A sentence of an answer, and the words that it cites, under their title and headings."""

    text: str
    quote: str
    heading: str = ""


@dataclass(frozen=True, slots=True)
class SupportRequest:
    claims: tuple[Claim, ...]
    request_id: str = ""
    cache_salt: str | None = None


@dataclass(frozen=True, slots=True)
class Support:
    """For each claim, in order, the probability that its quote says so; NaN where it could not be judged, never a made-up
    number."""

    values: tuple[float, ...]
    usage: Usage


# ---- generation -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """``history`` is for the style ``plain``, which has no evidence: a question that is searched stands on its own."""

    question: str
    evidence: tuple[Evidence, ...]
    style: GenerateStyle
    answer_tokens: int
    history: tuple[Message, ...] = ()
    request_id: str = ""
    cache_salt: str | None = None


@dataclass(frozen=True, slots=True)
class Draft:
    """A finished sentence from the generator, before verification: its text without markers, and the slots it cites.
    ``quote_span`` is the sentence's place in the (first) cited chunk's text when it is verbatim from there. A ``row`` of a
    table is written ``| a | b |``, and so is its ``header``, which claims nothing."""

    text: str
    slots: tuple[str, ...]
    quote_span: tuple[int, int] | None = None
    form: Form = "sentence"


@dataclass(frozen=True, slots=True)
class GenerateEvent:
    """What the prompt has no room for (``left_out``, ``cut``), or exactly one of the others; ``usage`` comes last."""

    left_out: tuple[str, ...] = ()
    """Slots of the passages that the model does not see."""
    cut: str | None = None
    """Slot of the one that it sees the beginning of."""
    draft: Draft | None = None
    reasoning: str = ""
    degraded: Degraded | None = None
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class Verified:
    """A sentence that may be shown: its support in [0, 1] and its citations resolved to spans of documents."""

    text: str
    support: float
    citations: tuple[Citation, ...]
