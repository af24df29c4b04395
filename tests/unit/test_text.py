import pytest

from assay.text import content_terms, index_terms, names, normalise, query_key, query_terms, sentences, terms


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
        ("Wałęsa", "walesa spoke"),
        ("smørrebrød", "smorrebrod"),
        ("猫", "我喜欢猫。"),
        ("§4.2", "as § 4.2 says"),
        ("F#", "written in F#"),
        ("vitamin D", "the D vitamins"),
        ("Plan A", "it is A, the first of the plans"),
        ("World War I", "After World War I ended"),
        ("λόγος", "ο λόγος του"),
    ],
)
def test_a_query_meets_the_document(query: str, document: str) -> None:
    assert query_terms(query, set(index_terms(document)))


# A document, the query that means it, and another document that must not match as well.
@pytest.mark.parametrize(
    ("query", "document", "other"),
    [
        ("§4.2", "see §4.2", "version 4.2"),
        ("C", "C is a language", "D is a language"),
        ("C++", "written in C++", "written in C"),
        ("F#", "written in F#", "written in F"),
        ("vitamin D", "vitamin D", "vitamin C"),
        ("hepatitis A", "an outbreak of Hepatitis A", "an outbreak of hepatitis"),
        ("Plan A", "This is Plan A", "a plan that is a good one"),
        ("B-120", "pump B-120", "pump B-121"),
    ],
)
def test_a_query_tells_documents_apart(query: str, document: str, other: str) -> None:
    vocabulary = {*index_terms(document), *index_terms(other)}
    wanted = set(query_terms(query, vocabulary))
    assert len(wanted & set(index_terms(document))) > len(wanted & set(index_terms(other)))


GERMAN = (
    "Die Wohnungen in der Straße sind nicht teuer, und die Mieten werden von den Eigentümern nach der Lage bestimmt."
)
FRENCH = (
    "Les appartements de la rue ne sont pas chers, et les loyers sont fixés par les propriétaires selon leur place."
)


@pytest.mark.parametrize(
    ("query", "document", "stem"),
    [("Wohnung", GERMAN, "wohnung"), ("die Miete", GERMAN, "miet"), ("loyer", FRENCH, "loyer")],
)
def test_each_language_has_its_own_stems(query: str, document: str, stem: str) -> None:
    """Also for a query that is too short to be told apart, among passages of several languages."""
    vocabulary = {*index_terms(document), *index_terms("The tenants of the house pay their rents in time.")}
    assert query_terms(query, vocabulary) == [stem]
    assert query_terms("tenant", vocabulary) == ["tenant"]


def test_function_words_of_a_language_go_where_it_is_spoken() -> None:
    assert not {"der", "die", "von"} & set(index_terms(GERMAN))
    assert "die" in index_terms("All men die, and most of them are at war with it.")
    both = {*index_terms(GERMAN), *index_terms("Heroes die hard")}
    assert query_terms("die Mieten in der Straße", both) == ["miet", "strass"]


def test_names_of_places_are_no_language() -> None:
    text = (
        "Teams from Los Angeles, San Diego and La Jolla met those of El Paso and Las Vegas at the De Soto field in May."
    )
    assert index_terms(text) == content_terms(text)
    assert index_terms("c C is a language") == ["c", "c", "languag"]


def test_only_known_terms_are_asked_for() -> None:
    assert query_terms("zzqq", {"pump"}) == []
    assert query_terms("the of and", {"the", "of"}) == []
    assert query_terms("", {""}) == []


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


def test_query_key_of_what_is_nearly_all_in_capitals() -> None:
    assert query_key("the MOONS OF MARS") == query_key("moons of Mars")
    assert query_key("the TIDES? THE") == query_key("TIDES")
    assert query_key("the WHO in Geneva") != query_key("in Geneva"), "a few capitals are a name"


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
        ("**Why not.** It is open. So", ["**Why not.** It is open.", "So"]),
        ("- **Why not?** It\n  is open.", ["**Why not?** It\n  is open."]),
        ("**Why not.**\n\nIt is open.", ["**Why not.**", "It is open."]),
        ("It is. **Mind this.** So", ["It is.", "**Mind this.**", "So"]),
        ("**All of it. In bold.** So", ["**All of it.", "In bold.**", "So"]),
        ("A\n\n---\n\nB", ["A", "B"]),
        ("", []),
        (" \n\t", []),
    ],
)
def test_sentences(text: str, expected: list[str]) -> None:
    assert spans(text) == expected
