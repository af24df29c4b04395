from hypothesis import given, settings
from hypothesis import strategies as st

from assay.markers import read_markers
from tests.unit.test_markers import SLOTS

FORMS = st.sampled_from(["[{}]", "[E{}]", "[[{}]]", "【{}】", "[ {} ]", "[{}, 9]", "[{}-{}]"])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["Tides rise", "潮", "x < y", "a.b"]), FORMS, st.integers(1, 5)), max_size=8))
def test_the_text_and_the_slots_come_apart(parts: list[tuple[str, str, int]]) -> None:
    text = " ".join(f"{words} {form.format(number, number)}." for words, form, number in parts)
    bare, slots, _ = read_markers(text, SLOTS)
    assert bare == " ".join(f"{words}." for words, _, _ in parts)
    assert slots == tuple(dict.fromkeys(f"E{number}" for _, _, number in parts))


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="[]【】`E1,- \n.a😀é", max_size=200))
def test_reading_twice_finds_no_slot_that_was_not_there(text: str) -> None:
    bare, slots, _ = read_markers(text, SLOTS)
    assert set(slots) <= set(SLOTS)
    assert len(bare) <= len(text)
