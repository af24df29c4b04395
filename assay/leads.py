"""Long documents: which of them a question is about shows where they begin, and what it asks for may stand anywhere in them.

A document's lead is its first passages: under its title and first headings they say what it is, and between whom. The leads are
searched first, and the best documents' other passages looked at too, and preferred (docs/adr/0011).
"""

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]

PASSAGES = 3  # of a lead: about as much as a summary of title, headings and beginning would hold
# So many rows of leads are compared with every question; of a larger index, only those of documents that the legs have found.
MOST = 50_000


class Leads:
    """The rows of each document of a snapshot. A document of a few passages is its own lead."""

    def __init__(self, document: NDArray[np.int32]) -> None:
        """``document``: of each row, in the order of the documents' text, the number of its document."""
        self._document = document
        self._order = np.argsort(document, kind="stable")
        self._starts = np.searchsorted(document[self._order], np.arange(int(document.max(initial=-1)) + 2))
        place = np.arange(len(document)) - self._starts[document[self._order]]
        self._leads = np.sort(self._order[place < PASSAGES])

    def rows(self, allowed: NDArray[np.bool_] | None) -> Rows:
        """All leads, ascending; those alone that may be returned, and so only of documents that may be seen."""
        return self._leads if allowed is None else self._leads[allowed[self._leads]]

    def near(self, rows: Rows, allowed: NDArray[np.bool_] | None) -> Rows:
        """The leads of the documents that some rows are of."""
        leads = self.rows(allowed)
        return leads[np.isin(self._document[leads], self._document[rows])]

    def best(self, rows: Rows, most: int) -> Rows:
        """Of rows in order, the first one of each document, up to ``most`` of them."""
        _, first = np.unique(self._document[rows], return_index=True)
        return rows[np.sort(first)[:most]]

    def within(self, rows: Rows, allowed: NDArray[np.bool_] | None) -> list[Rows]:
        """For each of some rows, all rows of its document that may be returned."""
        found = [self._order[self._starts[d] : self._starts[d + 1]] for d in self._document[rows].tolist()]
        return found if allowed is None else [of[allowed[of]] for of in found]
