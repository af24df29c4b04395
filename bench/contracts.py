"""CUAD's contracts as they are asked about: clauses that lawyers have labelled, by a contract's name and parties."""

import ast
import csv
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CLAUSES = {
    "Governing Law": "Which law governs",
    "Expiration Date": "When ends the term of",
    "Anti-Assignment": "Who may assign rights under",
    "Cap On Liability": "What is the limit of liability under",
    "License Grant": "Which license is granted by",
    "Renewal Term": "For how long is renewed",
    "Termination For Convenience": "Who may terminate without cause",
    "Audit Rights": "Who may inspect books and records under",
    "Minimum Commitment": "What is the least that must be bought under",
    "Insurance": "Which insurance is required by",
    "Notice Period To Terminate Renewal": "How long before must notice of non-renewal be given under",
    "Revenue/Profit Sharing": "How are revenues shared under",
    "Exclusivity": "What is exclusive under",
    "Post-Termination Services": "What has to be done after the end of",
    "Non-Compete": "Which competition is forbidden by",
}
_COMPANY = re.compile(
    r"\b(?:inc|llc|ltd|limited|corp|corporation|company|gmbh|plc|l\.p|b\.v|s\.a|incorporated)\b", re.I
)


@dataclass(frozen=True, slots=True)
class Question:
    """``contract``: the name of its file of text."""

    text: str
    contract: str
    clauses: tuple[str, ...]


def parties(cuad: Path) -> dict[str, str]:
    """Contract -> what it is called, and between whom it is, where the labels say so."""
    return {contract: called for contract, called, _ in _labelled(cuad)}


def questions(cuad: Path) -> list[Question]:
    """Of contracts that no other one shares its name and parties with."""
    found = []
    for contract, called, row in _labelled(cuad):
        for clause, asked in CLAUSES.items():
            if parts := tuple(
                p for text in ast.literal_eval(row[clause]) for p in text.split("<omitted>") if p.strip()
            ):
                found.append(Question(f"{asked} {called}?", contract, parts))
    times = Counter(q.text for q in found)
    return [q for q in found if times[q.text] == 1]


def spans_of(question: Question, text: str) -> list[tuple[int, int]]:
    """Where the labelled clauses stand."""
    found = []
    for clause in question.clauses:
        words = r"\s+".join(map(re.escape, clause.split()))
        found += [at.span() for at in re.finditer(words, text)]
    return found


def _labelled(cuad: Path) -> Iterator[tuple[str, str, dict[str, str]]]:
    txt = {
        Path(item["filename"]).stem: Path(item["txt"]).name for item in json.loads((cuad / "manifest.json").read_text())
    }
    with (cuad / "master_clauses.csv").open(newline="", encoding="utf-8-sig") as file:
        for row in csv.DictReader(file):
            named, parties = ast.literal_eval(row["Document Name"]), ast.literal_eval(row["Parties"])
            companies = [p for p in parties if len(p) <= 60 and "\n" not in p and _COMPANY.search(p)][:2]
            if named and companies and Path(row["Filename"]).stem in txt:
                called = f"the {' '.join(named[0].split()).lower()} between {' and '.join(companies)}"
                yield txt[Path(row["Filename"]).stem], called, row
