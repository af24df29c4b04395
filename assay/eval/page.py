"""A comparison of answers as one page that needs no other file: figures, plots, and every question with its traces."""

from collections.abc import Mapping, Sequence
from html import escape
from io import BytesIO
from typing import Any

from assay.eval.answers import COSTS, Measured, Outcome, Runs, apart, counted, mean
from assay.eval.plot import draw, panels
from assay.eval.questions import Question
from assay.eval.report import plain

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #1f2328 }
table { border-collapse: collapse; margin: 1rem 0 } th, td { padding: .15rem .7rem; border-bottom: 1px solid #d8dee4 }
td + td, th + th { text-align: right; font-variant-numeric: tabular-nums } th:first-child, td:first-child { text-align: left }
details { border-bottom: 1px solid #d8dee4; padding: .3rem 0 } details details { margin-left: 1rem; border: 0 }
summary { cursor: pointer } pre { white-space: pre-wrap; background: #f6f8fa; padding: .6rem; overflow-x: auto }
svg { max-width: 100%; height: auto } .bad { color: #b42318 } .note { color: #59636e }
"""


def page(title: str, questions: Sequence[Question], runs: Runs, found: Measured) -> str:
    """HTML. What is of files or of models stands in it as text, whatever it holds."""
    names = list(runs)
    ranking = found.ranking
    figures = [
        [metric, *(mean(ranking.estimates[name].get(metric), metric) for name in names)] for metric in found.metrics
    ]
    parts = [
        f"<h1>{_text(title)}</h1>",
        "<h2>Means</h2>",
        _table(["", *names], figures),
        '<p class="note">In brackets: 95 % of the bootstrap over the questions.</p>',
    ]
    if ranking.against:
        rows = [[m, *(apart(of.get(m), m) for of in ranking.against.values())] for m in found.metrics]
        parts += [
            f"<h2>Less {_text(ranking.baseline)}</h2>",
            _table(["", *ranking.against], [r for r in rows if any(r[1:])]),
        ]
        parts.append('<p class="note">Of the questions that both have; * the interval leaves out 0.</p>')
    rows = [[said, *map(str, counts)] for said, counts in counted(found)]
    parts += ["<h2>How the questions ended</h2>", _table(["", *names], rows)]
    parts += ["<h2>Plots</h2>", _plot(found, title), "<h2>Questions</h2>"]
    held = {name: {str(o["id"]): o for o in outcomes} for name, outcomes in runs.items()}
    parts += [_question(q, {name: held[name][q.id] for name in names}, found) for q in questions]
    head = f'<meta charset="utf-8"><title>{_text(title)}</title><style>{_STYLE}</style>'
    return f"<!doctype html>\n<html><head>{head}</head><body>\n" + "\n".join(parts) + "\n</body></html>\n"


def _plot(found: Measured, title: str) -> str:
    out = BytesIO()
    draw(out, panels(found.ranking, found.metrics, COSTS), title)
    svg = out.getvalue().decode()
    return svg[svg.index("<svg") :]


def _question(q: Question, outcomes: Mapping[str, Outcome], found: Measured) -> str:
    gold = "; ".join(q.answers) if q.answerable else "not answerable from these documents"
    parts = [f"<details><summary>{_text(q.id)}: {_text(q.asked['question'])}</summary>"]
    parts += [f"<p>Known: {_text(gold)}</p>"] if gold else []
    for name, outcome in outcomes.items():
        values = found.ranking.values[name]
        figures = ", ".join(f"{m} {values[m][q.id]:.3g}" for m in found.metrics if q.id in values.get(m, {}))
        parts += [f"<h3>{_text(name)}</h3>", *_outcome(outcome, figures)]
    return "\n".join([*parts, "</details>"])


def _outcome(outcome: Outcome, figures: str) -> list[str]:
    if (error := outcome["error"]) is not None:
        return [f'<p class="bad">{_text(error["code"])}: {_text(error["message"])}</p>']
    ended = f"{outcome['status']}, {outcome['terminated_by']}."
    parts = [f'<p>{_text(ended)} <span class="note">{_text(figures)}</span></p>']
    parts.append(f"<pre>{_text(outcome['answer'] or 'no answer')}</pre>")
    shown = {
        "citations": [f"[{c['number']}] {_place(c)}: {c['quote']}" for c in outcome["citations"]],
        "trace": [f"{s['step']}. {s['stage']}: {s['summary']}" for s in outcome["trace"] or []],
        "evidence": [_evidence(e) for e in sorted(outcome["evidence"] or [], key=lambda e: e["rank"])],
        "fallbacks": [f"{d['stage']}: {d['reason']}; {d['fallback']}" for d in outcome["degraded"]],
    }
    for what, lines in shown.items():
        if lines:
            parts.append(
                f"<details><summary>{what} ({len(lines)})</summary><pre>{_text(chr(10).join(lines))}</pre></details>"
            )
    return parts


def _evidence(e: Mapping[str, Any]) -> str:
    return f"{e['rank']}. {e['slot']}, round {e['round']}: {_place(e)}"


def _place(of: Mapping[str, Any]) -> str:
    return f"{of['title']} ({of['uri']}, {of['span'][0]} to {of['span'][1]})"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def cells(tag: str, row: Sequence[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{_text(cell)}</{tag}>" for cell in row) + "</tr>"

    return "<table>" + cells("th", head) + "".join(cells("td", row) for row in rows) + "</table>"


def _text(text: str) -> str:
    return escape("\n".join(map(plain, text.split("\n"))))
