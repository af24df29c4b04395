"""The grammars in the engines' own compilers: what is admitted there, sign by sign, is what ``tests/unit/generate`` says."""

import json
from dataclasses import replace
from typing import Any

import pytest

from assay.generate.grammar import NOT_FOUND, lark, regex
from assay.plan import SIZES, Size, plan_schema
from assay.schemas import STEPS
from assay.types import Evidence, Hit
from tests.fakes import chunk
from tests.unit.generate.test_grammar import ADMITTED, REFUSED
from tests.unit.test_plan import BOTH, FILTERS, said
from tests.unit.worst import worst

llguidance = pytest.importorskip("llguidance", reason="llguidance comes with vLLM")
xgrammar = pytest.importorskip("xgrammar", reason="xgrammar comes with vLLM")

PASSAGES = ("The Moon causes tides. It does not shine by itself.", "The Sun's light takes eight minutes to reach us.")
EVIDENCE = tuple(Evidence(f"E{n}", Hit(chunk(n, text), 1.0), 1.0, 1) for n, text in enumerate(PASSAGES, 1))


class Bytes:
    """A tokenizer of 256 bytes and an end, for llguidance."""

    eos_token_id, bos_token_id = 256, None
    tokens = [*(bytes([n]) for n in range(256)), b"<end>"]
    special_token_ids = [256]

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


@pytest.fixture(scope="module")
def guidance() -> Any:
    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(Bytes()))


def admits(tokenizer: Any, grammar: str, text: str) -> bool:
    matcher = llguidance.LLMatcher(tokenizer, grammar)
    assert not matcher.is_error(), matcher.get_error()
    return bool(matcher.consume_tokens([*text.encode(), 256]))


QUOTED = {"prose": 'It says that "the Moon causes tides" each day 🌙 [E2]!'}


@pytest.mark.parametrize(
    ("style", "text"), [(style, text) for style, text, _ in ADMITTED if text not in QUOTED.values()]
)
def test_guidance_admits_what_the_regex_admits(guidance: Any, style: Any, text: str) -> None:
    assert admits(guidance, lark(style, EVIDENCE, 5), text)


@pytest.mark.parametrize(("style", "text"), REFUSED)
def test_guidance_refuses_what_the_regex_refuses(guidance: Any, style: Any, text: str) -> None:
    assert not admits(guidance, lark(style, EVIDENCE, 5), text)


@pytest.mark.parametrize("style", ["prose", "list", "table"])
def test_guidance_lets_every_style_say_that_nothing_was_found(guidance: Any, style: Any) -> None:
    assert admits(guidance, lark(style, EVIDENCE, 5), NOT_FOUND)


@pytest.mark.parametrize(
    ("text", "admitted"),
    [
        ('It says that "does not shine by itself" [E1].', True),
        ('"The Moon causes tides" is what it says [E1].', True),
        ('It says that "does shine by itself" [E1].', False),
        ('It says that "does not shine by itself" [E2].', False),
        ('It says that "The Sun\'s light takes eight minutes" [E2].', True),
    ],
)
def test_guidance_holds_a_quote_to_the_passage_that_is_cited(guidance: Any, text: str, admitted: bool) -> None:
    assert admits(guidance, lark("prose", EVIDENCE, 5), text) is admitted


@pytest.mark.parametrize(
    ("text", "admitted"),
    [
        ('- It is "one line, and another" as it says [E1]\n', True),
        ('- It is "one line,\nand another" as it says [E1]\n', False),
        ('- "another "with a mark" in it" is there [E1]\n', False),
        ('- "with a mark" is there [E1]\n', True),
        ('- "in it [E2]" is there [E1]\n', False),
        ('- "in it" is there [E1]\n', True),
    ],
)
def test_a_quote_has_neither_lines_nor_marks_of_its_own(guidance: Any, text: str, admitted: bool) -> None:
    """It would end where they stand, and the rest would be cited by nothing, or by what the passage names."""
    chunk = replace(EVIDENCE[0].hit.chunk, text='It is one line,\nand another "with a mark" in it [E2].')
    evidence = [replace(EVIDENCE[0], hit=replace(EVIDENCE[0].hit, chunk=chunk)), *EVIDENCE[1:]]
    assert admits(guidance, lark("list", evidence, 5), text) is admitted


def test_a_passage_without_words_to_quote_opens_no_quotation(guidance: Any) -> None:
    """It could go on with nothing."""
    empty = [replace(EVIDENCE[0], hit=replace(EVIDENCE[0].hit, chunk=replace(EVIDENCE[0].hit.chunk, text="a [b]")))]
    matcher = llguidance.LLMatcher(guidance, lark("prose", empty, 5))
    assert admits(guidance, lark("prose", empty, 5), "The port is open [E1].")
    said = guidance.tokenize_str('The port is "')
    assert matcher.try_consume_tokens(said) == len(said) - 1 and not matcher.is_error()


# ---- xgrammar, which holds everything else ----------------------------------------------------------------------------


def accepts(grammar: Any, text: str) -> bool:
    vocabulary = xgrammar.TokenizerInfo([*(bytes([n]) for n in range(256)), b"<end>"], stop_token_ids=[256])
    matcher = xgrammar.GrammarMatcher(xgrammar.GrammarCompiler(vocabulary).compile_grammar(grammar))
    return bool(matcher.accept_string(text)) and matcher.accept_token(256)


@pytest.mark.parametrize(("style", "text"), [(style, text) for style, text, _ in ADMITTED])
def test_xgrammar_admits_what_the_regex_admits(style: Any, text: str) -> None:
    assert accepts(xgrammar.Grammar.from_regex(regex(style, ("E1", "E2"), 5)), text)


@pytest.mark.parametrize(("style", "text"), REFUSED)
def test_xgrammar_refuses_what_the_regex_refuses(style: Any, text: str) -> None:
    assert not accepts(xgrammar.Grammar.from_regex(regex(style, ("E1", "E2"), 5)), text)


@pytest.mark.parametrize(
    ("number", "admitted"),
    [
        ("0", True),
        ("0.25", True),
        ("-1234567.5", True),
        ("-" + "9" * 18 + ".123456", True),
        ("1e3", False),
        ("0." + "3" * 7, False),
        ("9" * 19, False),
    ],
)
def test_xgrammar_ends_a_number(number: str, admitted: bool) -> None:
    """A small model writes digits without end."""
    grammar = xgrammar.Grammar.from_json_schema(json.dumps(plan_schema({"filters"}, BOTH[:1])), any_whitespace=False)
    condition = '{"said": "1k", "field": "amount", "op": ">", "value": %s}'
    assert accepts(grammar, '{"filters": [' + condition % number + "]}") is admitted


@pytest.mark.parametrize("size", SIZES, ids=range(len(SIZES)))
def test_xgrammar_admits_the_longest_plan(size: Size) -> None:
    schema = plan_schema(STEPS, BOTH, 2, size)
    text = worst(schema, "谁 signed it? 🙂", len)
    assert accepts(xgrammar.Grammar.from_json_schema(json.dumps(schema), any_whitespace=False), text)


def test_xgrammar_holds_a_plan_to_what_there_is() -> None:
    steps = set(STEPS) - {"rewrite"}
    grammar = xgrammar.Grammar.from_json_schema(json.dumps(plan_schema(steps, BOTH, 2)), any_whitespace=False)
    good = json.loads(said(searches=[{"bucket": "contracts", "filters": FILTERS}]))
    for change, admitted in (
        ({}, True),
        ({"searches": [{"bucket": "secrets", "filters": []}]}, False),
        ({"searches": [{"bucket": "contracts", "filters": [FILTERS[0] | {"value": "Lease"}]}]}, False),
        ({"searches": [{"bucket": "contracts", "filters": [FILTERS[0] | {"op": "<"}]}]}, False),
        ({"searches": [{"bucket": "invoices", "filters": FILTERS[:1]}]}, False),
        ({"variants": ["x" * 161] * 2}, False),
    ):
        assert accepts(grammar, json.dumps(good | change)) is admitted, change
