from hypothesis import given
from hypothesis import strategies as st

from seatrial_sandbox.text import HeadTail, cut


@given(st.lists(st.binary(max_size=40)), st.integers(min_value=3, max_value=60))
def test_head_and_tail_are_kept_whatever_the_pieces(pieces: list[bytes], budget: int) -> None:
    data = b"".join(piece.replace(b"\n", b"").decode("latin-1").encode("ascii", "ignore") for piece in pieces)
    kept = HeadTail(budget)
    for start in range(0, len(data), 7):
        kept.write(data[start : start + 7])
    text = kept.text()
    if len(data) <= budget:
        assert text == data.decode()
    else:
        head, marker, tail = text.split("\n")
        assert data.startswith(head.encode())
        assert data.endswith(tail.encode())
        assert len(head) + len(tail) == budget
        assert marker == f"[... {len(data) - budget} bytes left out ...]"


def test_a_short_text_stays_as_it_is() -> None:
    assert cut("42", 10) == "42"


def test_a_cut_says_how_to_get_the_rest() -> None:
    assert "[... 90 bytes left out; ask for less ...]" in cut("x" * 100, 10, "ask for less")
