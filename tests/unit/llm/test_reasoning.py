"""Reasoning and answer are told apart for every way to write the tags and every way to cut the stream."""

import pytest

from assay.llm.reasoning import Parted, ThinkSplitter


def parted(*pieces: str, opened: bool | None = False, whole: bool = True) -> Parted:
    splitter = ThinkSplitter(opened)
    parts = [*map(splitter.feed, pieces), splitter.end(whole=whole)]
    return Parted("".join(p.text for p in parts), "".join(p.reasoning for p in parts))


CODE = "Use it so:\n```html\n<think>x</think>\n</think>\n```\nand `<think>` too."
CASES: list[tuple[str, bool | None, bool, str, str]] = [
    # text, opened, whole, answer, reasoning
    ("The answer.", False, True, "The answer.", ""),
    ("  \n{}", False, True, "  \n{}", ""),
    ("<think>\nhm</think>\n\nYes.", False, True, "Yes.", "hm"),
    ("\n<think></think>{}", False, True, "{}", ""),
    ("<think>hm", False, True, "", "hm"),
    ("<think>hm", False, False, "", "hm"),
    ("<think>hm</thi", False, True, "", "hm</thi"),
    ("<thin", False, True, "<thin", ""),
    ("<think>a</think>\n<think>b</think>\nc", False, True, "c", "ab"),
    ("<think><think>\na</think>b", False, True, "b", "a"),
    ("<think>a<think>b</think>c</think>d", False, True, "d", "a<think>b</think>c"),
    ("<think>it writes `</think>` there</think>d", False, True, "d", "it writes `</think>` there"),
    ("<think>a</think></think>b", False, True, "b", "a"),
    ("</think>\n\nb", False, True, "b", ""),
    (CODE, False, True, CODE, ""),
    (f"<think>a</think>{CODE}", False, True, CODE, "a"),
    ("a < b and a <thinker> c", False, True, "a < b and a <thinker> c", ""),
    ("", False, True, "", ""),
    # the prompt opened it
    ("hm</think>Yes.", True, True, "Yes.", "hm"),
    ("<think>hm</think>Yes.", True, True, "Yes.", "hm"),
    ("hm", True, True, "", "hm"),
    ("", True, True, "", ""),
    # nobody knows whether it did
    ("hm</think>Yes.", None, True, "Yes.", "hm"),
    ("hm <think>x</think> so</think>Yes.", None, True, "Yes.", "hm <think>x</think> so"),
    ("Yes.", None, True, "Yes.", ""),
    ("Yes, or n", None, False, "", "Yes, or n"),
    ("<think>hm</think>Yes, or n", None, False, "Yes, or n", "hm"),
    ("Yes <think>no", None, True, "", "Yes <think>no"),
    (" \n", None, True, " \n", ""),
]


@pytest.mark.parametrize(("text", "opened", "whole", "answer", "reasoning"), CASES)
def test_kinds(text: str, opened: bool | None, whole: bool, answer: str, reasoning: str) -> None:
    assert parted(text, opened=opened, whole=whole) == (answer, reasoning)
    assert parted(*text, opened=opened, whole=whole) == (answer, reasoning)
