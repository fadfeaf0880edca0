"""Messages between a host, its zygote and trial processes survive the way whole or not at all."""

from hypothesis import given
from hypothesis import strategies as st

from seatrial_rollout.trials.channel import (
    MAX_PACKET_BYTES,
    AnswerPart,
    Exited,
    Kill,
    Ready,
    Stop,
    answer_packets,
    pack,
    packet_pair,
    unpack,
)


@given(st.integers(1, 400_000))
def test_an_answer_of_any_length_arrives_whole_in_packets_that_fit(length: int) -> None:
    answer = bytes(index % 251 for index in range(length))
    packets = list(answer_packets(answer))
    parts = [unpack(packet) for packet in packets]
    assert all(len(packet) <= MAX_PACKET_BYTES for packet in packets)
    assert b"".join(part.data for part in parts if isinstance(part, AnswerPart)) == answer
    assert [part.is_last for part in parts if isinstance(part, AnswerPart)] == [False] * (len(parts) - 1) + [True]


def test_messages_keep_their_borders_and_the_end_is_told() -> None:
    messages = [Ready(), Stop(), Kill(), Exited(-9, 0.25)]
    near, far = packet_pair()
    with near:
        with far:
            for message in messages:
                far.send(pack(message))
        received = [unpack(near.recv(MAX_PACKET_BYTES)) for _ in messages]
        assert received == messages
        assert near.recv(MAX_PACKET_BYTES) == b""


def test_the_largest_packet_passes_a_pair_as_the_system_makes_it() -> None:
    near, far = packet_pair()
    with near, far:
        near.send(b"x" * MAX_PACKET_BYTES)
        assert len(far.recv(MAX_PACKET_BYTES)) == MAX_PACKET_BYTES
