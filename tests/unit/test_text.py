import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.text import content_terms, names, normalise, query_key, sentences, terms


def spans(text: str) -> list[str]:
    return [text[start:end] for start, end in sentences(text)]


@pytest.mark.parametrize(
    ("query", "document"),
    [
        ("東京", "東京は日本の首都です"),
        ("C", "C is a language"),
        ("naive", "a nai\u0308ve idea"),
        ("naïve", "a naive idea"),
        ("B-120", "the pump B-120 leaks"),
        ("b120", "the pump B-120 leaks"),
        ("4.2", "see § 4.2 for this"),
        ("§4.2", "see § 4.2 for this"),
        ("inference service", "an InferenceService is made"),
        ("InferenceService", "the InferenceService's status"),
        ("minReplicas", "set `minReplicas: 1`"),
        ("max batch size", "maxBatchSize"),
        ("C++", "written in C++"),
        ("US", "in the U.S. and elsewhere"),
        ("1234567", "1,234,567 people"),
        ("running", "it runs"),
        ("ﬁle", "one file"),
        ("ＡＢＣ", "abc"),
        ("المدينة", "مدينة كبيرة"),
        ("كِتَاب", "كتاب"),
        ("हिन्दी", "हिन्दी भाषा"),
        ("STRASSE", "straße"),
    ],
)
def test_a_query_meets_the_document(query: str, document: str) -> None:
    assert set(content_terms(query)) & set(content_terms(document))


@pytest.mark.parametrize("text", ["the of and", "", "What is it?", "  \n", "!?"])
def test_no_content(text: str) -> None:
    assert content_terms(text) == []


def test_parts_of_numbers_stay_apart() -> None:
    assert "42" not in terms("version 4.2")
    assert terms("v0.11.2")[0] == "v0.11.2"


def test_acronyms_are_no_function_words() -> None:
    assert content_terms("Is IT in the US?") == ["it", "us"]
    assert content_terms("IS IT THE ONE") == content_terms("is it the one")


def test_names() -> None:
    assert names("What does KServe do in B-120?") == ["kserv", "b120", "b", "120"]
    assert names("Explain the batcher") == []


@pytest.mark.parametrize(
    "same", ["deploy the models?", "DEPLOY  models", "models: deploy", "How to deploy a model", "deploying models"]
)
def test_query_key_of_the_same_search(same: str) -> None:
    assert query_key(same) == query_key("deploy models")


def test_query_key_tells_searches_apart() -> None:
    keys = {query_key(q) for q in ("deploy models", "deploy model servers", "the of", "what is", "?", "")}
    assert len(keys) == 6


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("models with GPU", "models without GPU"),
        ("releases before 2020", "releases after 2020"),
        ("dogs not cats", "dogs cats"),
        ("it doesn't scale", "it does scale"),
        ("flights from Paris to Rome", "flights from Rome to Paris"),
    ],
)
def test_query_key_keeps_what_turns_the_meaning(one: str, other: str) -> None:
    assert query_key(one) != query_key(other)


def test_query_key_does_not_mind_the_order() -> None:
    assert query_key("to Rome from Paris, flights") == query_key("Flights from Paris to Rome")
    assert query_key("models that aren't ready") == query_key("not ready models")


def test_normalise() -> None:
    assert normalise("Ｓtraße ﬁ") == "strasse fi"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It is 3.14. See v1.2.3. Done", ["It is 3.14.", "See v1.2.3.", "Done"]),
        ("By J. Smith et al. (2020). He left.", ["By J. Smith et al. (2020).", "He left."]),
        (
            "Use e.g. this, i.e. that. And https://a.b/c?d=1. End!",
            ["Use e.g. this, i.e. that.", "And https://a.b/c?d=1.", "End!"],
        ),
        ("It rose in the U.S. The law changed.", ["It rose in the U.S.", "The law changed."]),
        ('He said "Stop." Then he left.', ['He said "Stop."', "Then he left."]),
        ("See Fig. 3 and No. 5. Yahoo! is one.", ["See Fig. 3 and No. 5.", "Yahoo! is one."]),
        ("東京は首都です。京都は？はい。", ["東京は首都です。", "京都は？", "はい。"]),
        ("ما هذا؟ هذا كتاب.", ["ما هذا؟", "هذا كتاب."]),
        ("One line\nof a sentence. Two", ["One line\nof a sentence.", "Two"]),
        ("## A heading\nText. More.", ["A heading", "Text.", "More."]),
        ("- one. two\n- [x] three\n1. four\n   goes on", ["one. two", "three", "four\n   goes on"]),
        ("| a. | B |\n|----|---|\n| c | d |", ["| a. | B |", "| c | d |"]),
        ("Run:\n```bash\na. B\n```\nEnd.", ["Run:", "```bash\na. B\n```", "End."]),
        ("```\nnever closed. Yes", ["```\nnever closed. Yes"]),
        ("> Quoted one. Quoted two.", ["Quoted one.", "Quoted two."]),
        (":::note\nMind this.\n:::", ["Mind this."]),
        ("A\n\n---\n\nB", ["A", "B"]),
        ("", []),
        (" \n\t", []),
    ],
)
def test_sentences(text: str, expected: list[str]) -> None:
    assert spans(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "x\n" + " " * 200_000 + "y",
        "--" + " " * 200_000 + "y",
        "x" + "." * 200_000 + "y",
        "a. " * 60_000,
        "x." + ")" * 200_000 + "y",
        "|--" * 60_000 + "x",
        "so i went and. " * 12_000,
    ],
    ids=lambda text: text[:5],
)
def test_sentences_take_linear_time(text: str) -> None:
    begun = time.perf_counter()
    sentences(text)
    assert time.perf_counter() - begun < 2, "quadratic time took minutes here"


@settings(max_examples=15, deadline=None)
@given(st.text(alphabet="aB1 .!?\n\t#-*|>`~:。()[]\"'\u00a0\r", max_size=80))
def test_spans_are_disjoint_trimmed_and_lose_no_word(text: str) -> None:
    found = sentences(text)
    assert all(a[1] <= b[0] for a, b in pairwise(found))
    assert all(text[a:b] == text[a:b].strip() != "" for a, b in found)


@settings(max_examples=15, deadline=None)
@given(st.text(max_size=60))
def test_analysis_takes_any_text(text: str) -> None:
    assert all(terms(text))
    assert query_key(text) == query_key(f"  {text} ")
