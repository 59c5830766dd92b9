"""unpack: the messages of a batch, as the way through Python makes them, or None."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mq.errors import MQError
from mq.fastpath import unpack
from mq.message import Message
from mq.remoting.codec.batch import BatchEntry, decode_batch, encode_batch
from mq.remoting.server.messages import _RULES, _UNUSUAL, DROPPED, sent_batch, sent_message
from tests.fastpath.refcounts import keeps_nothing

TOPIC = "orders"
NAMES = sorted({*DROPPED, *_UNUSUAL, "KEYS", "TAGS", "a", "ключ", ""})
VALUES = ["", "true", "TRUE", "false", "1", "0", "x", "значение", "k" * 56, "k" * 57, "5\x016"]
piece = st.one_of(
    st.tuples(st.sampled_from(NAMES), st.sampled_from(VALUES)).map(lambda pair: f"{pair[0]}\x01{pair[1]}"),
    st.sampled_from(["", "name", "\x01", "\x01value"]),
)
usual = st.sampled_from(["WAIT\x01true", "UNIQ_KEY\x017F0000", "KEYS\x01k1 k2", "TAGS\x01t", "CLUSTER\x01c"])
properties = st.builds(
    lambda pieces, end, noise: ("\x02".join(pieces) + end).encode() + noise,
    st.one_of(st.lists(usual, max_size=5), st.lists(piece, max_size=4)),
    st.sampled_from(["\x02", "", "\x02\x02"]),
    st.one_of(st.just(b""), st.binary(max_size=4)),
)
entries = st.lists(st.tuples(st.binary(min_size=1, max_size=20), properties, st.integers(-9, 9)), max_size=6)


def slowly(batch: bytes) -> list[Any]:
    """What the way through Python makes of each message: an error instead of a message ends it."""
    made: list[Any] = []
    for entry in decode_batch(batch):
        try:
            sent = sent_message(TOPIC, entry.body, entry.flag, entry.properties.decode("utf-8", "replace"))
        except MQError as error:
            return [*made, str(error)]
        made.append(sent)
    return made


def told(message: Message) -> tuple[object, ...]:
    return message.topic, message.body, message.flag, message.plain, message.encoded


@given(entries)
def test_it_makes_what_the_way_through_python_makes(entries: list[tuple[bytes, bytes, int]]) -> None:
    batch = encode_batch(entries)
    messages = unpack(TOPIC, batch, _RULES)
    made = slowly(batch)
    if messages is not None:
        assert [told(message) for message in messages] == [told(sent.message) for sent in made]
        assert not any(sent.is_half or sent.wants_reply for sent in made)
        assert all(type(message) is Message for message in messages)


@given(st.lists(st.tuples(st.binary(min_size=1), st.lists(usual), st.integers(-(1 << 31), (1 << 31) - 1))))
def test_usual_messages_are_for_it(entries: list[tuple[bytes, list[str], int]]) -> None:
    batch = encode_batch(
        (body, "".join(f"{piece}\x02" for piece in pieces).encode(), flag) for body, pieces, flag in entries
    )
    messages = unpack(TOPIC, batch, _RULES)
    assert messages is not None
    assert [told(message) for message in messages] == [told(sent.message) for sent in slowly(batch)]


@pytest.mark.parametrize("name", sorted({*_UNUSUAL, *DROPPED}))
def test_no_name_with_a_treatment_of_its_own_is_just_kept(name: str) -> None:
    batch = encode_batch([(b"x", f"{name}\x011\x02".encode(), 0)])
    messages = unpack(TOPIC, batch, _RULES)
    assert messages is None or [message.encoded for message in messages] == [
        sent.message.encoded for sent in slowly(batch)
    ]


@given(entries.filter(bool), st.data())
def test_damaged_batches_are_not_for_it(entries: list[tuple[bytes, bytes, int]], data: st.DataObject) -> None:
    batch = bytearray(encode_batch(entries))
    for _ in range(data.draw(st.integers(1, 3))):
        batch[data.draw(st.integers(0, len(batch) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(batch[: data.draw(st.integers(0, len(batch)))])
    messages = unpack(TOPIC, cut, _RULES)
    try:
        made = slowly(cut)
    except MQError:
        assert messages is None
    else:
        assert messages is None or [told(m) for m in messages] == [told(sent.message) for sent in made]


@given(st.binary(max_size=200))
@example(b"\xff\xff\xff\xff" * 6)
@example(b"\x00\x00\x00\x16" + b"\x7f\xff\xff\xff" * 5)
def test_noise_is_not_for_it(noise: bytes) -> None:
    messages = unpack(TOPIC, noise, _RULES)
    assert messages is None or len(messages) == len(decode_batch(noise))


def test_a_message_that_is_not_usual_is_made_all_the_same() -> None:
    entries = [(b"a", b"KEYS\x01k\x02", 0), (b"b", b"WAIT\x01false\x02DELAY\x013\x02", 1)]
    batch = encode_batch(entries)
    assert unpack(TOPIC, batch, _RULES) is None
    first, second = sent_batch(TOPIC, batch)
    assert (first.keys, first.plain, second.delay_level, second.wait) == (("k",), True, 3, False)
    assert decode_batch(batch)[0] == BatchEntry(*entries[0])


def test_arguments_of_other_types_are_refused() -> None:
    wrong: list[tuple[Any, ...]] = [
        (b"orders", b"", {}),
        (TOPIC, bytearray(), {}),
        (TOPIC, b"", []),
        (TOPIC, b""),
    ]
    for arguments in wrong:
        with pytest.raises(TypeError):
            unpack(*arguments)
    with pytest.raises(TypeError):
        unpack(TOPIC, encode_batch([(b"x", b"a\x01b\x02", 0)]), {b"a": "text"})  # type: ignore[dict-item]  # as above


def test_it_keeps_nothing() -> None:
    good = encode_batch((b"x" * 100, b"KEYS\x01k\x02WAIT\x01true\x02", n) for n in range(10))
    bad = good + encode_batch([(b"y", b"DELAY\x013\x02", 0)])
    noise = good + b"\x00\x01"
    text = "orders" * 2

    def each() -> None:
        assert len(unpack(text, good, _RULES) or ()) == 10
        assert unpack(text, bad, _RULES) is None
        assert unpack(text, noise, _RULES) is None

    assert keeps_nothing(each, [text, good, bad, noise, True, *_RULES.values()], 1000)
