"""Long documents: which of them a question is about shows where they begin, and what it asks for may stand anywhere in them.

A document's lead is its first passages: under its title and first headings they say what it is, and between whom. The leads are
searched first, and the best documents' other passages looked at too, and preferred. What is very long may hold several things,
of which each begins somewhere: there any other passage leads as well, to those that follow it (docs/adr/0011).
"""

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]

PASSAGES = 3  # of a lead: about as much as a summary of title, headings and beginning would hold
LONG = 100  # passages; of a document with more, any may lead
REACH = 50  # passages, from such a one on
# So many rows of leads are compared with every question; of a larger index, only those of documents that the legs have found.
MOST = 50_000


class Leads:
    """The rows of each document of a snapshot. A document of a few passages is its own lead."""

    def __init__(self, document: NDArray[np.int32]) -> None:
        """``document``: of each row, in the order of the documents' text, the number of its document."""
        self._document = document
        self._order = np.argsort(document, kind="stable")
        self._starts = np.searchsorted(document[self._order], np.arange(int(document.max(initial=-1)) + 2))
        self._at = np.empty(len(document), np.int64)  # each row's place in that order
        self._at[self._order] = np.arange(len(document))
        self._first = self._at - self._starts[document] < PASSAGES
        self._leading = self._first | (np.diff(self._starts) > LONG)[document]
        self._firsts, self._leads = np.flatnonzero(self._first), np.flatnonzero(self._leading)

    def rows(self, allowed: NDArray[np.bool_] | None) -> Rows:
        """All leads, ascending; those alone that may be returned, and so only of documents that may be seen."""
        return self._leads if allowed is None else self._leads[allowed[self._leads]]

    def near(self, rows: Rows, allowed: NDArray[np.bool_] | None) -> Rows:
        """The first passages of the documents that some rows are of, and those of the rows that lead themselves."""
        firsts = self._firsts[np.isin(self._document[self._firsts], self._document[rows])]
        leads = np.union1d(firsts, rows[self._leading[rows]])
        return leads if allowed is None else leads[allowed[leads]]

    def best(self, rows: Rows, most: int) -> Rows:
        """Of rows in order, the first one that leads to each document, or to a stretch of one, up to ``most`` of them."""
        found: list[int] = []
        while len(rows) and len(found) < most:
            found.append(int(rows[0]))
            first, last = self._led_by(found[-1])
            same = (first <= self._at[rows]) & (self._at[rows] < last) & (self._first[rows] == self._first[found[-1]])
            rows = rows[~same]
        return np.array(found, np.int64)

    def within(self, rows: Rows, allowed: NDArray[np.bool_] | None) -> list[Rows]:
        """For each of some rows, all rows that it leads to and that may be returned."""
        found = [self._order[slice(*self._led_by(row))] for row in rows.tolist()]
        return found if allowed is None else [of[allowed[of]] for of in found]

    def _led_by(self, row: int) -> tuple[int, int]:
        """Places in the order: the whole document, or a stretch of it."""
        start, end = self._starts[self._document[row] :][:2].tolist()
        at = int(self._at[row])
        return (start, end) if self._first[row] else (at, min(at + REACH, end))
