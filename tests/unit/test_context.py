from assay.context import window

TEXT = "Alpha is first. The pump B-120 moves cold water every day. Omega is the last of all. " * 3


def test_around_the_best_sentence() -> None:
    start, end = window(TEXT, (0, 80), "which pump moves water", 44)
    assert TEXT[start:end] == "The pump B-120 moves cold water every day."


def test_wider_than_the_chunk() -> None:
    chunk = (TEXT.index("Omega"), TEXT.index("all.") + 4)
    start, end = window(TEXT, chunk, "omega", 100)
    assert start < chunk[0] < chunk[1] < end
    assert end - start <= 100
    assert TEXT[start - 1] == TEXT[end] == " "


def test_at_the_edges_the_other_side_has_the_room() -> None:
    assert window(TEXT, (0, 15), "alpha", 10_000) == (0, len(TEXT.rstrip()))
    start, end = window(TEXT, (0, 15), "alpha", 60)
    assert (start, end) == (0, 58)
