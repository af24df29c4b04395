from hypothesis import given
from hypothesis import strategies as st

from tests.unit.llm.test_wire import read, said


@given(st.lists(st.integers(0, 40), max_size=6), st.sampled_from(["reasoning_content", "reasoning", None]))
def test_the_cuts_change_nothing(cuts: list[int], field: str | None) -> None:
    text = "Yes: `<think>` 😀." if field else "<think>hm 😀</think>\nYes: `<think>` 😀."
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    thought = [said(**{field: "hm "}), said(**{field: "😀"})] if field else []
    pieces = [said(content=text[a:b]) for a, b in zip(places, places[1:], strict=False)]
    done = read(*thought, *pieces, said("stop"))
    assert (done.text, done.reasoning, done.finish_reason) == ("Yes: `<think>` 😀.", "hm 😀", "stop")
