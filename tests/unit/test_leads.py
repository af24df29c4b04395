import numpy as np

from assay.leads import LONG, PASSAGES, REACH, Leads

# Document 1 has no row, 0 stands in two places, and 2 is longer than a lead.
DOCUMENT = np.array([2, 2, 2, 2, 0, 3, 3, 0], np.int32)
EVERY = None
SOME = np.array([False, True, True, True, True, True, False, True])


def test_a_lead_is_the_first_passages_of_a_document() -> None:
    assert PASSAGES == 3
    leads = Leads(DOCUMENT)
    assert leads.rows(EVERY).tolist() == [0, 1, 2, 4, 5, 6, 7]
    assert leads.near(np.array([3, 7]), EVERY).tolist() == [0, 1, 2, 4, 7]


def test_only_what_is_allowed_leads_or_is_within() -> None:
    leads = Leads(DOCUMENT)
    assert leads.rows(SOME).tolist() == [1, 2, 4, 5, 7]
    assert leads.near(np.array([3]), SOME).tolist() == [1, 2]
    assert [rows.tolist() for rows in leads.within(np.array([1, 5]), SOME)] == [[1, 2, 3], [5]]
    assert [rows.tolist() for rows in leads.within(np.array([7]), EVERY)] == [[4, 7]]


def test_a_document_counts_once_by_its_best_row() -> None:
    leads = Leads(DOCUMENT)
    assert leads.best(np.array([7, 2, 4, 0, 5]), 2).tolist() == [7, 2]
    assert leads.best(np.array([7, 2, 4, 0, 5]), 9).tolist() == [7, 2, 5]
    assert leads.best(np.zeros(0, np.int64), 2).tolist() == []


def test_an_empty_index_has_none() -> None:
    assert Leads(np.zeros(0, np.int32)).rows(EVERY).tolist() == []


def test_in_a_long_document_any_passage_leads_to_those_that_follow_it() -> None:
    """Document 0 is long, 1 as long as may be without, and document 0's rows come last."""
    size = LONG + 1
    leads = Leads(np.array([1] * LONG + [0] * size, np.int32))
    assert leads.rows(EVERY).tolist() == [0, 1, 2, *range(LONG, LONG + size)]
    first, inner = LONG + 1, LONG + 40
    assert leads.best(np.array([inner + 1, first, inner + REACH, LONG, inner + REACH + 1, inner, 2]), 9).tolist() == [
        inner + 1, first, inner + REACH + 1, inner, 2,
    ]  # fmt: skip
    whole, stretch, last = leads.within(np.array([first, inner, LONG + size - 1]), EVERY)
    assert whole.tolist() == [*range(LONG, LONG + size)]
    assert stretch.tolist() == [*range(inner, inner + REACH)]
    assert last.tolist() == [LONG + size - 1], "a stretch ends with its document"
    seen = np.arange(LONG + size) % 2 == 0
    assert leads.within(np.array([inner]), seen)[0].tolist() == [*range(inner, inner + REACH, 2)]
    assert leads.rows(seen).tolist() == [0, 2, *range(LONG, LONG + size, 2)]


def test_near_rows_of_a_long_document_are_its_beginning_and_they_themselves() -> None:
    leads = Leads(np.zeros(LONG + 1, np.int32))
    assert leads.near(np.array([2, 70]), EVERY).tolist() == [0, 1, 2, 70]
