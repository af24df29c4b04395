"""The plan of a capable model: bound by a schema of what there is, held to what was said, and never wider than the request."""

import json
import threading
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from assay.config import ExpanderConfig
from assay.expand import LLMExpander, described
from assay.llm.longest import longest, rate_of
from assay.plan import SIZES, plan_schema, usable
from assay.schemas import OPS, STEPS, Usage
from assay.tokens import EstimatedTokenizer
from assay.types import BucketInfo, Completion, CompletionRequest, Entity, FieldInfo, Message, Plan, PlanRequest
from tests.fakes import ScriptedLLM
from tests.unit.worst import worst

pytestmark = pytest.mark.anyio

CONTRACTS = BucketInfo(
    "contracts",
    60,
    900,
    "Signed agreements with suppliers and customers",
    (
        FieldInfo("type", "text", True, "What kind of agreement it is", 60, ("Licence", "Service", "Supply")),
        FieldInfo("signed", "date", False, "", 58),
        FieldInfo("party", "text", False, "The other side", 60),
        FieldInfo("amount", "number", False, "In euros", 40),
    ),
)
INVOICES = BucketInfo(
    "invoices",
    6,
    12,
    "Bills that we were sent",
    (
        FieldInfo("paid", "boolean", False, "", 6),
        FieldInfo("amount", "text", False, "With its currency", 6),
        FieldInfo("tags", "list", False, "", 3, ("late", "partial")),
    ),
)
BOTH = (CONTRACTS, INVOICES)
QUESTION = "Which supply agreements with Acme were signed since 2015, and for more than 1k each?"


def said(**parts: Any) -> str:
    """A whole plan for ``BOTH``, with what is given."""
    whole = {
        "reason": "documents hold it",
        "search": True,
        "intent": "list",
        "searches": [{"bucket": "contracts", "filters": []}],
        "entities": [{"name": "Acme", "role": "company"}],
        "topics": ["supply of goods"],
        "strategy": "hybrid",
        "questions": [],
        "variants": ["Acme supply contracts since 2015", "purchase agreements with Acme"],
        "format": "table",
    }
    return json.dumps(whole | parts)


def test(field: str, op: str, value: Any, words: str) -> dict[str, Any]:
    return {"said": words, "field": field, "op": op, "value": value}


test.__test__ = False  # type: ignore[attr-defined]
FILTERS = [
    test("type", "=", "Supply", "supply agreements"),
    test("party", "like", "Acme", "with Acme"),
    test("signed", ">=", "2015-01-01", "since 2015"),
]


async def plan(reply: Any, question: str = QUESTION, **fields: Any) -> tuple[Plan, ScriptedLLM]:
    llm = ScriptedLLM(*(reply if isinstance(reply, list) else [reply]))
    request = PlanRequest(question, **({"buckets": BOTH, "today": "2026-01-05"} | fields))
    return await LLMExpander(llm, ExpanderConfig(steps=STEPS)).plan(request), llm


def asked(llm: ScriptedLLM, number: int = 0) -> CompletionRequest:
    request = llm.history[number]
    assert isinstance(request, CompletionRequest)
    return request


async def test_one_call_gives_the_whole_plan() -> None:
    made, llm = await plan(said(searches=[{"bucket": "contracts", "filters": FILTERS}]))
    assert len(llm.history) == 1 and made.fault is None and made.dropped == ()
    assert (made.buckets, made.intent, made.style, made.strategy) == (("contracts",), "list", "table", "hybrid")
    assert made.entities == (Entity("Acme", "company"),)
    assert made.variants == (
        "Acme supply contracts since 2015",
        "purchase agreements with Acme",
        "supply of goods",
    )
    assert made.filters is not None
    assert made.filters.model_dump(by_alias=True) == {
        "and": [
            {"field": "type", "op": "=", "value": "Supply"},
            {"field": "party", "op": "like", "value": "%Acme%"},
            {"field": "signed", "op": ">=", "value": "2015-01-01"},
        ]
    }
    content = asked(llm).messages[-1].content
    assert content.startswith("Today: 2026-01-05\n") and content.endswith(f"Last question: {QUESTION}")


async def test_filters_of_two_buckets_bind_each_to_its_own() -> None:
    searches = [{"bucket": "contracts", "filters": FILTERS[:1]}, {"bucket": "invoices", "filters": []}]
    made, _ = await plan(said(searches=searches))
    assert made.buckets == ("contracts", "invoices") and made.filters is not None
    assert made.filters.model_dump(by_alias=True) == {
        "or": [
            {
                "and": [
                    {"field": "bucket", "op": "=", "value": "contracts"},
                    {"field": "type", "op": "=", "value": "Supply"},
                ]
            },
            {"field": "bucket", "op": "=", "value": "invoices"},
        ]
    }


@pytest.mark.parametrize(
    ("condition", "why"),
    [
        (test("type", "=", "Supply", "service agreements"), "nobody said so"),
        (test("party", "=", "Globex", "with Acme"), "it names what nobody said"),
        (test("signed", ">=", "2015-02-30", "since 2015"), "there is no such day"),
    ],
)
async def test_a_filter_rests_on_words_that_were_said(condition: dict[str, Any], why: str) -> None:
    made, _ = await plan(said(searches=[{"bucket": "contracts", "filters": [condition]}]))
    assert made.filters is None and made.buckets == ("contracts",)
    assert len(made.dropped) == 1 and made.dropped[0].endswith(why)


async def test_a_value_that_its_bound_ended_is_no_condition() -> None:
    """The start of a name is another name; the sizes of a schema decide where it ends."""
    name = "Acme " * 20
    for length, dropped in ((79, 0), (80, 1)):
        condition = test("party", "=", name[:length], "with Acme")
        llm = ScriptedLLM(said(searches=[{"bucket": "contracts", "filters": [condition]}]))
        made = await LLMExpander(llm, ExpanderConfig(steps=STEPS)).plan(
            PlanRequest(f"Signed with {name}?", buckets=BOTH)
        )
        assert len(made.dropped) == dropped and (made.filters is None) == bool(dropped), made
        assert not dropped or made.dropped[0].endswith("it may go on after 80 characters")


async def test_a_value_of_those_that_there_are_is_whole() -> None:
    """A field that has them in one bucket, and any text in another."""
    value = "supply of goods and of services, " * 3
    listed = replace(INVOICES, fields=(FieldInfo("party", "text", True, "", 6, (value,)),))
    condition = test("party", "=", value, "of goods")
    llm = ScriptedLLM(said(searches=[{"bucket": "invoices", "filters": [condition]}]))
    request = PlanRequest(f"Who wants {value}?", buckets=(CONTRACTS, listed))
    made = await LLMExpander(llm, ExpanderConfig(steps=STEPS)).plan(request)
    assert made.filters is not None and made.dropped == ()


BAD: list[dict[str, Any]] = [
    {"searches": [{"bucket": "secrets", "filters": []}]},
    {"searches": [{"bucket": "contracts", "filters": [test("typ", "=", "Supply", "supply")]}]},
    {"searches": [{"bucket": "contracts", "filters": [test("paid", "=", True, "supply")]}]},
    {"searches": [{"bucket": "contracts", "filters": [test("type", "=", "Lease", "supply")]}]},
    {"searches": [{"bucket": "contracts", "filters": [test("type", "<", "Supply", "supply")]}]},
    {"searches": [{"bucket": "contracts", "filters": [test("signed", "=", "last year", "since 2015")]}]},
    {"searches": [{"bucket": "invoices", "filters": [test("paid", "=", "yes", "supply")]}]},
    {"searches": [{"bucket": "invoices", "filters": [test("amount", "=", "1k", "1k")]}]},
    {"searches": []},
    {"variants": ["x" * 161]},
    {"variants": ["one two", "three four", "five six"]},
    {"intent": "destroy"},
    {"more": 1},
]


@pytest.mark.parametrize("parts", BAD)
async def test_what_there_is_not_is_not_of_the_schema(parts: dict[str, Any]) -> None:
    """Unknown buckets, fields, operators and values, a field that two buckets have of two types, and strings without end."""
    made, _ = await plan(said(**parts))
    assert made == Plan(QUESTION, usage=made.usage, fault=made.fault) and made.fault and "schema" in made.fault
    schema = plan_schema(set(STEPS) - {"rewrite"}, BOTH, 2)
    assert not Draft202012Validator(schema).is_valid(json.loads(said(**parts)))


def test_a_schema_binds_every_string_list_and_object() -> None:
    schema = plan_schema(STEPS, BOTH, 3)
    Draft202012Validator.check_schema(schema)

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            kind = node.get("type")
            assert kind != "string" or "maxLength" in node or "pattern" in node, node
            assert kind != "array" or "maxItems" in node, node
            assert kind != "object" or (
                node["additionalProperties"] is False and set(node["required"]) == set(node["properties"])
            )
            for inner in node.values():
                walk(inner)
        elif isinstance(node, list):
            for inner in node:
                walk(inner)

    walk(schema)


# What is asked, and the words that a plan for it may be full of.
SAID = {
    "english": ("Which suppliers were paid late?", "Which suppliers were paid late?"),
    "chinese": ("培顿·曼宁参加第 50 届超级碗时多大？", "培顿·曼宁参加第"),
    "asked for": (
        f"Please answer this in Chinese, {'thank you so much, ' * 5}培顿·曼宁参加第超级碗时多大？",
        "超级碗时多大",
    ),
    "arabic": ("من وقع العقد؟ 🙂👩‍👩‍👧", "من وقع العقد "),
    "signs": ("====", "suppliers "),
    "korean": ("Answer in Korean, please, and at length: 팀 예산 누가 정해 계약 언제", "팀 예산 계약 "),
    "hindi": ("Answer in Hindi, please, and at length: कौन भुगतान कब करता है", "भुगतान कब करता है "),
}
LISTED = replace(
    INVOICES, fields=(FieldInfo("kind", "text", True, "", 6, ("an English category", "违约责任的分配和其他")),)
)


def tokens(text: str) -> int:
    return EstimatedTokenizer().count(text)


@pytest.mark.parametrize(("question", "words"), SAID.values(), ids=SAID)
@pytest.mark.parametrize("buckets", [BOTH, BOTH[:1], (LISTED,), ()], ids=["both", "one", "listed", "none"])
def test_no_plan_is_longer_than_the_longest(question: str, words: str, buckets: tuple[BucketInfo, ...]) -> None:
    rate, lengths = rate_of(question, tokens), []
    for size in SIZES:
        schema = plan_schema(set(STEPS) - ({"route"} if not buckets else set()), buckets, 3, size)
        filled = worst(schema, words, tokens)
        lengths.append(longest(schema, rate, tokens))
        assert tokens(filled) <= lengths[-1] and Draft202012Validator(schema).is_valid(json.loads(filled))
        assert lengths[-1] <= 1.2 * tokens(filled) or question not in words
    assert lengths == sorted(set(lengths), reverse=True), "each size is less than the one before"


def test_the_longest_of_values_is_that_of_the_most_tokens() -> None:
    latin, short = [f"an English category, {n}" for n in range(6)], "违约责任的分配和其他条款的继续有效"
    assert len(short) < min(map(len, latin))
    assert longest({"enum": [*latin, short]}, 0.35, tokens) == tokens(f'"{short}"')


def test_a_rate_is_that_of_the_densest_script_and_never_none() -> None:
    assert rate_of("", tokens) == rate_of("=", lambda text: 0) == rate_of("word " * 999, tokens) == pytest.approx(0.35)
    assert (
        rate_of("word " * 99 + "培顿" * 30, tokens) == rate_of("培顿" * 30 + "word " * 99, tokens) == pytest.approx(1)
    )
    assert rate_of("Was kostet der Anschluß für Geräte?", tokens) < 0.6, "letters of a Latin word"


@pytest.mark.parametrize("most", [1_400, 4_096, None])
@pytest.mark.parametrize(("question", "words"), SAID.values(), ids=SAID)
async def test_the_longest_plan_ends_within_its_tokens(question: str, words: str, most: int | None) -> None:
    llm, config = ScriptedLLM(said()), ExpanderConfig(steps=STEPS, max_tokens=most)
    await LLMExpander(llm, config).plan(PlanRequest(question, buckets=BOTH))
    (request,) = (asked(llm, n) for n in range(len(llm.history)))
    assert request.max_tokens == (most or 4_096)
    schema = json.loads(request.json_schema or "")
    assert tokens(worst(schema, words, tokens)) <= 0.9 * request.max_tokens
    if most != 1_400 and question.startswith("Which"):
        assert schema == plan_schema(set(STEPS) - {"rewrite"}, BOTH, 2), "no smaller than need be"


async def test_a_plan_is_in_the_words_of_the_whole_conversation() -> None:
    words = SAID["chinese"][1]
    history = (Message("user", words * 3), Message("assistant", "Yes."))
    llm = ScriptedLLM(said(query="Who?"))
    await LLMExpander(llm, ExpanderConfig(steps=STEPS)).plan(PlanRequest("Who?", history=history, buckets=BOTH))
    assert tokens(worst(json.loads(asked(llm).json_schema or ""), words, tokens)) <= 0.9 * 4_096


@pytest.mark.parametrize("variants", [1, 2, 8])
async def test_so_does_the_longest_of_variants(variants: int) -> None:
    for question in (SAID["english"][0], "Was kostet der Anschluss eines Geräts?"):
        llm, config = ScriptedLLM("{}"), ExpanderConfig(skip_simple=False, variants=variants)
        await LLMExpander(llm, config).plan(PlanRequest(question, variants=variants))
        schema = json.loads(asked(llm).json_schema or "")
        assert tokens(worst(schema, question, tokens)) <= 0.9 * asked(llm).max_tokens
        assert schema["properties"]["variants"]["items"]["maxLength"] >= 48


async def test_what_is_long_in_counting_holds_up_no_other_question() -> None:
    """Many buckets with many values take the better part of a second."""
    counted_in = set[threading.Thread]()

    class Noting(EstimatedTokenizer):
        def count(self, text: str) -> int:
            counted_in.add(threading.current_thread())
            return super().count(text)

    expander = LLMExpander(ScriptedLLM(said()), ExpanderConfig(steps=STEPS), tokenizer=Noting(), context_tokens=32_768)
    assert not (await expander.plan(PlanRequest(QUESTION, buckets=BOTH))).fault
    assert counted_in and threading.current_thread() not in counted_in


async def test_a_plan_takes_a_quarter_of_a_small_context() -> None:
    for context, most in ((32_768, 4_096), (8_192, 2_048), (2_400, 600)):
        llm = ScriptedLLM(said())
        made = await LLMExpander(llm, ExpanderConfig(steps=STEPS), context_tokens=context).plan(
            PlanRequest(QUESTION, buckets=BOTH)
        )
        assert asked(llm).max_tokens == most and made.fault is None


async def test_a_rewritten_question_that_its_bound_ended_is_none() -> None:
    history = (Message("user", "Who signed with Acme? " + "word " * 60),)
    for length, used in ((159, True), (160, False)):
        llm = ScriptedLLM(said(query=("word " * 40)[:length]))
        made = await LLMExpander(llm, ExpanderConfig(steps=STEPS)).plan(
            PlanRequest(QUESTION, history=history, buckets=BOTH)
        )
        assert (made.fault is None) is used and (made.query == QUESTION) is not used


async def test_a_plan_is_judged_by_the_most_spacious_size() -> None:
    """An engine that knows the schema from its prompt alone may write more than the sent one admits, and ends all the same."""
    llm = ScriptedLLM(
        said(reason="r" * 150, questions=[f"What does Acme's contract number {n} say on notice?" for n in range(4)])
    )
    made = await LLMExpander(llm, ExpanderConfig(steps=STEPS, max_tokens=1_024)).plan(
        PlanRequest(QUESTION, buckets=BOTH)
    )
    assert json.loads(asked(llm).json_schema or "")["properties"]["reason"]["maxLength"] < 100
    assert made.fault is None and len(made.sub_questions) == 4


async def test_another_document_makes_no_other_schema() -> None:
    """Schemas are made once for a set of buckets; their counts and descriptions are not in them."""
    counted: list[str] = []

    class Counting(EstimatedTokenizer):
        def count(self, text: str) -> int:
            counted.append(text)
            return super().count(text)

    expander = LLMExpander(ScriptedLLM(said(), said()), ExpanderConfig(steps=STEPS), tokenizer=Counting())
    await expander.plan(PlanRequest(QUESTION, buckets=BOTH))
    first = len(counted)
    counted.clear()
    more = tuple(replace(bucket, documents=99, chunks=999, description="Others") for bucket in BOTH)
    await expander.plan(PlanRequest(QUESTION, buckets=more))
    assert first > 20 and len(counted) < 5


async def test_buckets_whose_filters_do_not_fit_one_plan_are_chosen_first() -> None:
    """Fewer buckets than a plan may name would leave some out without a word. What cannot be made to end has room."""
    many = tuple(replace(CONTRACTS, name=f"contracts{n}") for n in range(32))
    first = json.dumps({"reason": "r", "search": True, "searches": [{"bucket": "contracts7"}]})
    llm = ScriptedLLM(first, "{")
    config = ExpanderConfig(steps=STEPS, fields_per_call=200)
    made = await LLMExpander(llm, config).plan(PlanRequest(QUESTION, buckets=many))
    assert made.buckets == ("contracts7",) and made.fault
    which, what = (json.loads(asked(llm, n).json_schema or "")["properties"] for n in (0, 1))
    assert which["searches"]["maxItems"] == 32 and "filters" not in json.dumps(which)
    assert "searches" not in what and what["filters"]["maxItems"] == SIZES[0].filters
    every = json.dumps({"reason": "r", "search": True, "searches": [{"bucket": bucket.name} for bucket in many]})
    llm = ScriptedLLM(every, "{")
    await LLMExpander(llm, config).plan(PlanRequest(QUESTION, buckets=many))
    assert json.loads(asked(llm, 1).json_schema or "")["properties"]["questions"]["maxItems"] == SIZES[0].questions


def test_operators_are_those_of_the_fields_type() -> None:
    schema = plan_schema(["filters"], (CONTRACTS,))
    for kind in schema["properties"]["filters"]["items"]["anyOf"]:
        (name,) = kind["properties"]["field"]["enum"]
        type_ = next(f.type for f in CONTRACTS.fields if f.name == name)
        assert set(kind["properties"]["op"]["enum"]) <= set(OPS[type_])
    assert "reason" not in schema["properties"], "only what is to be decided"


def test_a_field_of_two_types_is_no_field_of_both() -> None:
    assert "amount" not in {field.name for field in usable(BOTH)}
    assert "amount" in {field.name for field in usable((CONTRACTS,))}


async def test_many_fields_are_planned_in_two_calls() -> None:
    first = json.dumps({"reason": "r", "search": True, "searches": [{"bucket": "contracts"}]})
    second = json.loads(said(filters=FILTERS[:1]))
    for name in ("reason", "search", "searches"):
        second.pop(name)
    llm = ScriptedLLM(first, json.dumps(second))
    config = ExpanderConfig(steps=STEPS, fields_per_call=3)
    made = await LLMExpander(llm, config).plan(PlanRequest(QUESTION, buckets=BOTH))
    assert made.fault is None and made.buckets == ("contracts",) and made.reason == "r" and made.usage.llm_calls == 2
    assert made.filters is not None and made.filters.model_dump() == {"field": "type", "op": "=", "value": "Supply"}
    shown = [asked(llm, n).messages[0].content for n in (0, 1)]
    assert "  signed (date)" not in shown[0] and "invoices: Bills" in shown[0]
    assert "  signed (date)" in shown[1] and "invoices" not in shown[1]


async def test_a_first_call_without_a_search_is_the_only_one() -> None:
    llm = ScriptedLLM(json.dumps({"reason": "a greeting", "search": False, "searches": [{"bucket": "contracts"}]}))
    config = ExpanderConfig(steps=STEPS, fields_per_call=3)
    made = await LLMExpander(llm, config).plan(PlanRequest("Hello there, how are you?", buckets=BOTH))
    assert not made.search and made.reason == "a greeting" and len(llm.history) == 1


async def test_parts_are_two_or_more_and_differ() -> None:
    questions = ["When was the Acme contract signed?", "the Acme contract: when was it SIGNED?"]
    made, _ = await plan(said(questions=questions))
    assert made.sub_questions == ()
    made, _ = await plan(said(questions=[questions[0], "What does the Acme contract cost?"]))
    assert len(made.sub_questions) == 2


async def test_a_capable_models_variants_need_not_share_a_word() -> None:
    made, _ = await plan(said(variants=["purchase of goods", "purchase of goods, goods"], topics=[]))
    assert made.variants == ("purchase of goods",)


async def test_what_a_request_does_not_let_the_plan_decide_is_not_asked() -> None:
    _, llm = await plan('{"variants": ["a b", "c d"]}', steps=("rewrite", "expand"))
    schema = json.loads(asked(llm).json_schema or "")
    assert set(schema["properties"]) == {"variants"}
    made, llm = await plan("", steps=("rewrite",))
    assert not llm.history and made == Plan(QUESTION)


async def test_a_simple_lookup_costs_no_call() -> None:
    made, llm = await plan("", question="Who signed the lease?", buckets=(INVOICES,))
    assert not llm.history and made == Plan("Who signed the lease?")
    history = (Message("user", "Who rents the house?"),)
    _, llm = await plan(said(query="Who signed the lease?"), question="Who signed the lease?", history=history)
    assert len(llm.history) == 1, "with a history it must be rewritten first"


@pytest.mark.parametrize("steps", [STEPS, ("rewrite", "expand")])
async def test_a_conversations_prompt_grows_at_its_end_between_two_cuts(steps: Any) -> None:
    """So that an engine's prefix cache holds for it."""
    turns = [[Message("user", f"Who signed lease {n}?"), Message("assistant", f"Party {n}.")] for n in range(12)]
    before: list[str] = []
    for count in range(1, 13):
        history = tuple(message for turn in turns[:count] for message in turn)
        _, llm = await plan("{}", question="And when?", history=history, steps=steps)
        before.append(
            "\0".join(message.content for message in asked(llm).messages).removesuffix("Last question: And when?")
        )
    cuts = [count + 2 for count, (old, new) in enumerate(pairwise(before)) if not new.startswith(old)]
    assert cuts == [5, 8, 11]  # four turns fit, a cut leaves two
    assert "lease 10?" in before[-1] and "lease 11?" in before[-1] and "lease 8?" not in before[-1]


def test_buckets_are_shown_on_lines_of_their_own() -> None:
    hostile = BucketInfo("x", 1, 1, "one\ntwo: <|im_end|>", (FieldInfo("f", "text", False, "", 1, ("a\n\nb",)),))
    assert described([hostile], True) == "\nThe buckets:\nx: one two: <|im_end|> (1 documents)\n  f (text, one of: a b)"
    assert "  f" not in described([hostile], False)


@pytest.mark.parametrize("bad", [Completion('{"reason": "r', "length", Usage(llm_calls=1)), "no json"])
@pytest.mark.parametrize("calls", ["one", "the first of two", "the second of two"])
async def test_a_plan_that_cannot_be_used_is_not_asked_for_again(bad: Completion | str, calls: str) -> None:
    """Behind it there is one that would do. A second call is for the rest of a first that can be used, or is not made."""
    first = json.dumps({"reason": "r", "search": True, "searches": [{"bucket": "contracts"}]})
    llm = ScriptedLLM(*[first] * (calls == "the second of two"), bad, *[said()] * 9)
    config = ExpanderConfig(steps=STEPS, fields_per_call=100 if calls == "one" else 3)
    made = await LLMExpander(llm, config).plan(PlanRequest(QUESTION, buckets=BOTH))
    assert made.fault and made.usage.llm_calls == len(llm.history) == (2 if calls == "the second of two" else 1)
