"""Messages and results as classes: with fields in C they are as any others, and give their memory back."""

from __future__ import annotations

import copy
import enum
import gc
import inspect
import pickle
import pydoc
import struct
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

import mq
from mq.client.retry import RetriedMessage
from mq.fastpath import SentFields
from tests.support.records import encode_record

QUEUE = mq.MessageQueue("orders", "mq", 3)
PROPERTIES = b"TAGS\x01paid\x02UNIQ_KEY\x01A0\x02"
RECORD = encode_record("orders", 3, 7, 4096, b"body", PROPERTIES, checksum=False)
HOST = b"\x7f\0\0\1\0\0\x2a\x9f"


def message() -> mq.Message:
    return mq.Message("orders", b"body", tags="paid", keys="k1")


def stored() -> mq.MessageExt:
    return mq.MessageExt(RECORD, "mq")


def sent() -> mq.SendResult:
    return mq.SendResult(mq.SendStatus.SEND_OK, QUEUE, 7, "A0", (HOST, 4096), "T1")


def sent_batch() -> mq.SendResult:
    return mq.SendResult(mq.SendStatus.SEND_OK, QUEUE, 7, lambda: ["A0", "A1"], lambda: (HOST, [4096, 8192]))


def pulled() -> mq.PullResult:
    return mq.PullResult(mq.PullStatus.FOUND, [stored()], 8, 0, 9)


MAKERS: list[Callable[[], Any]] = [message, stored, sent, sent_batch, pulled]
FIELDS = {
    mq.Message: (
        "topic", "body", "flag", "plain", "encoded", "tags", "keys", "properties", "wait", "delay_level",
        "delay_ms", "deliver_at_ms",
    ),
    mq.MessageExt: (
        "record", "broker_name", "topic", "body", "encoded", "tags", "keys", "properties", "queue_id",
        "queue_offset", "log_offset", "msg_id", "offset_msg_id", "flag", "store_size",
    ),
    mq.SendResult: (
        "status", "queue", "queue_offset", "msg_id", "msg_ids", "offset_msg_id", "transaction_id",
    ),
    mq.PullResult: ("status", "messages", "next_offset", "min_offset", "max_offset"),
}  # fmt: skip


def values(of: Any) -> list[Any]:
    (names,) = (names for kind, names in FIELDS.items() if isinstance(of, kind))
    return [getattr(of, name) for name in names]


@pytest.fixture(params=MAKERS, ids=lambda make: make.__name__)
def make(request: pytest.FixtureRequest) -> Callable[[], Any]:
    made: Callable[[], Any] = request.param
    return made


def test_help_and_inspect_tell_the_arguments() -> None:
    for kind, names in (
        (
            mq.Message,
            "topic body tags keys properties flag delay_level delay_ms deliver_at_ms wait dedup_key",
        ),
        (mq.MessageExt, "record broker_name"),
        (mq.SendResult, "status queue queue_offset ids place transaction_id out_ms"),
        (mq.PullResult, "status messages next_offset min_offset max_offset"),
    ):
        assert list(inspect.signature(kind).parameters) == names.split()
        assert f"class {kind.__name__}" in pydoc.plain(pydoc.render_doc(kind))


def test_a_subclass_tells_its_own_arguments() -> None:
    class Order(mq.Message):
        def __init__(self, number: int) -> None:
            super().__init__("orders", b"%d" % number)

    class Paid(mq.Message):
        pass

    assert list(inspect.signature(Order).parameters) == ["number"]
    assert list(inspect.signature(RetriedMessage).parameters) == ["message", "reconsume_times"]
    assert inspect.signature(Paid) == inspect.signature(mq.Message)


def test_nothing_of_a_value_can_be_assigned_or_deleted(make: Callable[[], Any]) -> None:
    value = make()
    (names,) = (names for kind, names in FIELDS.items() if isinstance(value, kind))
    before = values(value)
    for name in (*names, "added"):
        with pytest.raises(AttributeError):
            setattr(value, name, None)
        with pytest.raises(AttributeError):
            delattr(value, name)
    assert values(value) == before


def test_a_value_is_made_once(make: Callable[[], Any]) -> None:
    value = make()
    before = values(value)
    again: list[tuple[Any, tuple[Any, ...]]] = [
        (mq.Message, ("other", b"other")),
        (mq.MessageExt, (b"other", "other")),
        (mq.SendResult, (mq.SendStatus.SEND_OK, QUEUE, 1, "B", (HOST, 1))),
        (mq.PullResult, (mq.PullStatus.FOUND, [], 1, 1, 1)),
    ]
    for kind, arguments in again:
        with pytest.raises(TypeError, match="never changes" if isinstance(value, kind) else "requires"):
            kind.__init__(value, *arguments)
    assert values(value) == before


@pytest.mark.parametrize("kind", FIELDS, ids=lambda kind: kind.__name__)
def test_what_was_never_filled_in_says_so(kind: Any) -> None:
    empty = kind.__new__(kind)
    missing = []
    for name in FIELDS[kind]:
        try:
            getattr(empty, name)
        except AttributeError:
            missing.append(name)
    # Whole numbers of a PullResult have no way to be missing.
    assert [name for name in FIELDS[kind] if name not in missing] == (
        ["next_offset", "min_offset", "max_offset"] if kind is mq.PullResult else []
    )
    with pytest.raises(AttributeError):
        repr(empty)


def test_copies_and_pickles_are_the_same(make: Callable[[], Any]) -> None:
    value = make()
    copies = [copy.copy(value), copy.deepcopy(value)]
    copies += [
        pickle.loads(pickle.dumps(make(), protocol)) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
    ]
    for other in copies:
        assert type(other) is type(value)
        assert values(other) == values(value)
        assert repr(other) == repr(value)


class Order(mq.Message):
    """Arguments of its own, and attributes."""

    def __init__(self, number: int) -> None:
        super().__init__("orders", b"%d" % number)
        self.number = number


class SlottedOrder(mq.Message):
    __slots__ = ("__price", "number")

    def __init__(self, number: int) -> None:
        super().__init__("orders", b"%d" % number)
        self.number = number
        self.__price = number * 2

    @property
    def price(self) -> int:
        return self.__price


class Receipt(mq.SendResult):
    def __init__(self, note: str) -> None:
        super().__init__(mq.SendStatus.SEND_OK, QUEUE, 1, "A0", (HOST, 4096))
        self.note = note


class Page(mq.PullResult):
    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        super().__init__(mq.PullStatus.FOUND, [stored()], number, number, number)
        self.number = number


class Stateful(mq.Message):
    """Decides itself what is kept of it."""

    def __init__(self) -> None:
        super().__init__("orders", b"x")
        self.kept, self.dropped = "kept", object()

    def __getstate__(self) -> dict[str, str]:
        return {"kept": self.kept}


def every_copy(value: Any) -> Iterator[Any]:
    yield copy.copy(value)
    yield copy.deepcopy(value)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        yield pickle.loads(pickle.dumps(value, protocol))


def test_copies_of_a_subclass_keep_what_it_added() -> None:
    for order in every_copy(Order(5)):
        assert (type(order), order.body, order.number) == (Order, b"5", 5)
    for slotted in every_copy(SlottedOrder(5)):
        assert (slotted.body, slotted.number, slotted.price) == (b"5", 5, 10)
    for receipt in every_copy(Receipt("note")):
        assert (receipt.msg_id, receipt.note) == ("A0", "note")
    for page in every_copy(Page(4)):
        assert (page.next_offset, page.number, page.messages) == (4, 4, [stored()])
    for stateful in every_copy(Stateful()):
        assert vars(stateful) == {"kept": "kept"}


def test_a_message_that_came_again_goes_to_another_process() -> None:
    for again in every_copy(RetriedMessage(stored(), 2)):
        assert type(again) is RetriedMessage
        assert (again.topic, again.reconsume_times, again.record) == ("orders", 2, RECORD)


def test_equal_values_are_one_in_a_set() -> None:
    assert {message(), message(), copy.copy(message())} == {message()}
    assert {stored(), stored()} == {stored()}
    other = mq.Message("orders", b"body", tags="paid", keys="k2")
    assert message() != other
    assert message() != stored()
    assert stored() != mq.MessageExt(RECORD, "other")


def test_subclasses_may_have_weak_references_and_attributes() -> None:
    order = Order(1)
    order.added = [order]  # type: ignore[attr-defined]  # as users do
    gone = weakref.ref(order)
    del order
    gc.collect()
    assert gone() is None
    assert not hasattr(message(), "__dict__")
    with pytest.raises(TypeError):
        weakref.ref(message())


def test_a_result_in_its_own_list_is_collected() -> None:
    class Watched(mq.PullResult):
        __slots__ = ("__weakref__",)

    messages: list[Any] = []
    watched = Watched(mq.PullStatus.FOUND, messages, 0, 0, 0)
    messages.append(watched)
    gone = weakref.ref(watched)
    del watched, messages
    gc.collect()
    assert gone() is None


def test_ids_and_places_of_a_batch_may_be_asked_for_while_they_are_replaced() -> None:
    class Makes:
        """Asks for what replaces it when it goes."""

        def __call__(self) -> list[str]:
            return ["A0", "A1"]

        def __del__(self) -> None:
            assert result._ids == ("A0", "A1")

    result = mq.SendResult(mq.SendStatus.SEND_OK, QUEUE, 7, Makes(), lambda: (HOST, [4096, 8192]))
    assert result.msg_ids == ("A0", "A1")
    assert len(result.split()) == 2


class Tag(str, enum.Enum):
    PAID = "paid-or-not"


class Loud(str):
    __slots__ = ()

    def __format__(self, spec: str) -> str:
        return "\x01\x02"

    def __str__(self) -> str:
        return "\x01\x02"


@pytest.mark.parametrize("text", [Tag.PAID, Loud("paid-or-not")])
def test_a_text_of_a_class_of_its_own_counts_by_its_characters(text: str) -> None:
    for _ in range(2):  # the second time the tag is known
        assert mq.Message("orders", b"x", tags=text).encoded == b"TAGS\x01paid-or-not\x02"
        assert mq.Message("orders", b"x", tags=text, keys=text).keys == ("paid-or-not",)
        assert mq.Message("orders", b"x", keys=[text, "b"]).keys == ("paid-or-not", "b")
        assert mq.Message("orders", b"x", properties={text: text}).properties == {
            "paid-or-not": "paid-or-not"
        }
        mq.Message("orders", b"x", tags="paid-or-not")
        with pytest.raises(TypeError, match="a topic is a str"):
            mq.Message(type(text)("paid-or-not"), b"x")
        mq.Message("paid-or-not", b"x")  # known from now on


def test_half_of_a_surrogate_pair_is_refused_wherever_it_stands() -> None:
    for arguments in ({"tags": "\ud800"}, {"keys": "\ud800"}, {"tags": "paid", "keys": "a\udfff"}):
        for _ in range(2):
            with pytest.raises(mq.MessageInvalid, match="surrogate"):
                mq.Message("orders", b"x", **arguments)  # type: ignore[arg-type]  # one of several
    with pytest.raises(mq.TopicInvalid):
        mq.Message("\ud800", b"x")


def test_large_values_are_taken_up_to_their_limits() -> None:
    assert len(mq.Message("t" * 127, b"x" * (64 << 20), keys="k" * 4095).keys[0]) == 4095
    for size in (4095, 4096, 4097):
        assert mq.Message("orders", b"x", keys="k" * size).keys == ("k" * size,)
    with pytest.raises(mq.MessageInvalid):
        mq.Message("orders", b"x", keys="k" * 40_000)
    with pytest.raises(OverflowError):
        mq.PullResult(mq.PullStatus.FOUND, [], 1 << 63, 0, 0)
    for flag in (1 << 31, 1 << 63, 1 << 64):
        with pytest.raises(mq.MessageInvalid):
            mq.Message("orders", b"x", flag=flag)


@pytest.mark.parametrize(
    ("call", "arguments", "options"),
    [
        (mq.Message, (), {}),
        (mq.Message, ("orders",), {}),
        (mq.Message, ("orders", b"x", "paid"), {}),
        (mq.Message, ("orders", b"x"), {"tag": "paid"}),
        (mq.Message, ("orders", b"x"), {"tags": "a", "keys": "b", "tag": "c"}),
        (mq.Message, ("orders", b"x"), {"topic": "again"}),
        (mq.Message, (["orders"], b"x"), {}),
        (mq.Message, ("orders", b"x"), {"tags": ["a"]}),
        (mq.MessageExt, (), {}),
        (mq.MessageExt, ("text", "mq"), {}),
        (mq.MessageExt, (b"", b"mq"), {}),
        (mq.MessageExt, (bytearray(RECORD), "mq"), {}),
        (mq.MessageExt, (RECORD, "mq", 1), {}),
        (mq.SendResult, (), {}),
        (mq.SendResult, (mq.SendStatus.SEND_OK, QUEUE, "1", "A0", (HOST, 1)), {}),
        (mq.SendResult, (mq.SendStatus.SEND_OK, QUEUE, 1, "A0"), {}),
        (mq.PullResult, (), {}),
        (mq.PullResult, (mq.PullStatus.FOUND, [], 1.5, 0, 0), {}),
        (mq.PullResult, (mq.PullStatus.FOUND, [], 1, 0), {}),
        (mq.Message.restored, ("orders", b"x", 0, True), {}),
        (mq.Message.restored, ("orders", b"x", 0, True, "text"), {}),
        (mq.Message.restored, ("orders", b"x", 0, 1, b""), {}),
        (mq.Message.restored, ("orders", b"x", True, True, b""), {}),
        (mq.Message.restored, ("orders", bytearray(b"x"), 0, True, b""), {}),
        (mq.Message.restored, (b"orders", b"x", 0, True, b""), {}),
        (mq.MessageExt.restored, (RECORD,), {}),
        (SentFields.restored, (), {}),
    ],
)
def test_wrong_arguments_are_a_type_error(
    call: Callable[..., object], arguments: tuple[Any, ...], options: dict[str, Any]
) -> None:
    for _ in range(2):
        with pytest.raises(TypeError):
            call(*arguments, **options)


def test_bytes_and_texts_of_subclasses_are_kept_as_plain_ones() -> None:
    class Bytes(bytes):
        pass

    class Text(str):
        __slots__ = ()

    kept = mq.MessageExt(Bytes(RECORD), Text("mq"))
    assert (type(kept.record), type(kept.broker_name)) == (bytes, str)
    assert kept == stored()
    assert type(mq.Message("orders", Bytes(b"x")).body) is bytes
    assert type(mq.Message("orders", b"x", flag=True).flag) is int


def test_records_cut_short_are_an_error_and_never_a_read_beyond() -> None:
    for size in range(len(RECORD)):
        short = mq.MessageExt(RECORD[:size], "mq")
        for name in ("body", "encoded", "topic", "tags", "properties"):
            # Which error depends on what is cut; SystemError is none of them.
            with suppress(struct.error, IndexError, ValueError):
                getattr(short, name)


def everything_once() -> None:
    """Each way to make a value, and each way to fail at it."""
    made = message()
    mq.Message("orders", b"body", properties={"a": "b"}, flag=1)
    mq.Message("orders", b"body", tags="paid", delay_level=3)
    for wrong in ({"keys": "a b"}, {"tags": 5}, {"flag": "1"}, {"tag": "x"}):
        with suppress(TypeError, mq.MessageInvalid):
            mq.Message("orders", b"x", **wrong)
    record = stored()
    assert (record.body, record.encoded, record.tags) == (b"body", PROPERTIES, "paid")
    everything: list[Any] = [made, record, sent(), sent_batch(), pulled()]
    for value in (*everything, RetriedMessage(record), Order(1), Page(1)):
        copied: Any = copy.copy(value)
        repr(copied)
        with suppress(TypeError):
            type(copied).__init__(copied)
    result = sent()
    assert (result._ids, result._place) == ("A0", (HOST, 4096))
    assert result._receipt
    mq.Message.__new__(mq.Message)
    mq.PullResult.__new__(mq.PullResult)


def grown_blocks(action: Callable[[], object], rounds: int) -> int:
    """How many blocks of memory more there are after many rounds than after some."""
    for _ in range(rounds // 10):
        action()
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(rounds):
        action()
    gc.collect()
    return sys.getallocatedblocks() - before


def test_every_way_to_make_a_value_gives_its_memory_back() -> None:
    classes = (mq.Message, mq.MessageExt, mq.SendResult, mq.PullResult, RetriedMessage, Order, Page)
    shared = (*classes, QUEUE, mq.SendStatus.SEND_OK, mq.PullStatus.FOUND, RECORD)
    assert grown_blocks(everything_once, 300) < 300
    before = [sys.getrefcount(value) for value in shared]
    assert grown_blocks(everything_once, 3000) < 300
    # Of a class, the interpreter has a few more or less; what is forgotten each time would come to thousands.
    assert all(abs(sys.getrefcount(value) - was) < 20 for value, was in zip(shared, before, strict=True))


def test_a_million_of_each_gives_its_memory_back() -> None:
    result = mq.SendResult(mq.SendStatus.SEND_OK, QUEUE, 1 << 40, "A0", (HOST, 4096))
    message_of, stored_of, pulled_of = mq.Message, mq.MessageExt, mq.PullResult
    sent_of, status, found = mq.SendResult, mq.SendStatus.SEND_OK, mq.PullStatus.FOUND

    def each() -> None:
        message_of("orders", b"body", tags="paid", keys="k1")
        _ = stored_of(RECORD, "mq").body
        _ = sent_of(status, QUEUE, 7, "A0", (HOST, 4096)).queue_offset
        _ = pulled_of(found, [], 1 << 40, 0, 1 << 40).next_offset
        _ = result.queue_offset

    assert grown_blocks(each, 1_000_000) < 300
