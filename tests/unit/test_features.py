"""What is measured of a question and its evidence."""

from dataclasses import replace

import pytest

from assay.features import leads, of_evidence, phrases
from assay.grade import follow_ups
from assay.types import Evidence, Hit
from tests.fakes import chunk

QUESTION = "Which city is the birthplace of the director of The Quiet River?"
FILM = ("The Quiet River (film)", "The Quiet River is a 1962 film directed by Ana Moreno. It was shot in Chile.")
DIRECTOR = ("Ana Moreno", "Ana Moreno was a film director. Her birthplace is the city of Valdivia.")
RIVER = ("Rivers", "A river is a stream of water that runs into the sea.")


def evidence(*passages: tuple[str, str]) -> tuple[Evidence, ...]:
    chunks = [replace(chunk(n, text, title), heading=()) for n, (title, text) in enumerate(passages, 1)]
    return tuple(Evidence(f"E{c.id}", Hit(c, 1.0), 1.0, 1) for c in chunks)


def test_a_passage_that_names_anothers_title_makes_a_link_that_covers_the_question() -> None:
    both, one = of_evidence(QUESTION, evidence(FILM, DIRECTOR)), of_evidence(QUESTION, evidence(FILM, RIVER))
    assert both["link_gain"] > 0 and both["bridge"] == both["linked"] == 1
    assert one["link_gain"] == one["bridge"] == one["linked"] == 0
    assert both["word_coverage"] > one["word_coverage"]


def test_passages_of_one_document_do_not_link_to_each_other() -> None:
    twice = evidence(FILM, (FILM[0], "The Quiet River won a prize."))
    assert of_evidence(QUESTION, twice)["linked"] == 0


def test_a_title_is_named_as_a_word_not_as_letters() -> None:
    asked = of_evidence("What is the art of Particia?", evidence(("Art", "Art is made."), ("Part", "An art.")))
    assert asked["two_coverage"] == 0 and asked["linked"] == 1
    assert of_evidence("Who?", evidence(("Art", "x"), ("B", "A party in Parton.")))["linked"] == 0


def test_a_comparison_asks_for_both_titles() -> None:
    found = of_evidence("Are Ana Moreno and Rivers the same?", evidence(DIRECTOR, RIVER))
    assert found["two_coverage"] == found["word_coverage"] > 0


def test_no_evidence_measures_nothing_and_nothing_measured_is_absent() -> None:
    assert of_evidence(QUESTION, ()) == {}
    assert {"likelihood_gain", "similarity"}.isdisjoint(of_evidence(QUESTION, evidence(FILM)))


def test_a_short_sentence_that_denies_is_told_where_the_question_does_not() -> None:
    asked, text = "Does Moreno direct films?", "Moreno does not direct films."
    assert of_evidence(asked, evidence(("Moreno", text)))["denies"] == 1
    assert of_evidence("Does Moreno not direct films?", evidence(("Moreno", text)))["denies"] == 0
    assert of_evidence(asked, evidence(("Moreno", f"{text[:-1]}{' and more' * 30}.")))["denies"] == 0


@pytest.mark.parametrize("rule", ["shall not direct films", "may not direct films", "directs no films without consent"])
def test_a_rule_that_forbids_denies_nothing(rule: str) -> None:
    measured = of_evidence("Who may direct films?", evidence(("Moreno", f"Moreno {rule}.")))
    assert measured["denies"] == (" no " in rule), "beside a rule there may be a denial"


def test_a_denial_is_looked_for_in_every_sentence_that_shares_much_with_the_question() -> None:
    asked, said = "Which films does Moreno not direct?", "Moreno does direct films of others."
    assert of_evidence(asked, evidence(("Moreno", said)))["no_denial"] == 1
    assert of_evidence(asked, evidence(("Moreno", f"{said} But Moreno does not direct war films.")))["no_denial"] == 0


def test_a_number_of_the_question_must_stand_in_the_evidence() -> None:
    at = [of_evidence(f"What was shot in {year}?", evidence(FILM))["numbers"] for year in (1962, 1963)]
    assert at == [1, 0]
    assert of_evidence("What was shot?", evidence(RIVER))["numbers"] == 1


def test_names_are_runs_of_capitals_with_function_words_inside() -> None:
    assert phrases("did the University of Chile open in 1842?") == (("universiti", "chile"), ("1842",))


def test_leads_are_the_evidences_own_names_nearest_to_the_question_first() -> None:
    passages = evidence(FILM, RIVER)
    found = leads(QUESTION, passages, 2)
    assert next(iter(found.items())) == ("Ana Moreno", passages[0])
    first, *others = follow_ups(QUESTION, passages, ())
    assert first == "Ana Moreno city birthplace director", (
        "what the film's passage does not have is asked of its director"
    )
    assert others == ["Chile city birthplace director"]
    assert "Ana Moreno" not in leads(QUESTION, evidence(FILM, DIRECTOR), 9), "its passage is there already"


def test_a_capital_that_begins_a_sentence_or_stands_in_code_makes_no_lead() -> None:
    text = (
        "**Keep** the river in Chile. (Give it to Dr. Moreno.)\n\n| Where | Told to Paris |\n| Draw them. Look at it | x |\n\n"
        "```text\nGive other ways. Keep Valdivia.\n```"
    )
    found = leads("Which river?", evidence(("Notes", text)), 20)
    assert set(found) == {"Chile", "Dr. Moreno", "Paris"}
