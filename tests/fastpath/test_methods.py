"""The sends of producers are in C for the usual message, and ordinary methods for all other uses."""

from __future__ import annotations

import inspect
import pydoc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import mq
from mq.fastpath import Sender, in_c

COMMIT = mq.TransactionState.COMMIT


@pytest.fixture
def broker(directory: Path) -> Iterator[mq.Broker]:
    with mq.open(directory) as broker:
        broker.create_topic("orders", 1)
        yield broker


def checks(_message: mq.MessageExt) -> mq.TransactionState:
    return COMMIT


METHODS: dict[str, tuple[Callable[..., Any], list[str]]] = {
    "Producer.send": (
        mq.Producer.send,
        ["self", "message", "queue", "shard_key", "timeout", "dedup_key", "unique_id"],
    ),
    "TransactionProducer.send": (
        mq.TransactionProducer.send,
        ["self", "message", "execute", "arg", "queue", "shard_key"],
    ),
    "TransactionProducer.begin": (
        mq.TransactionProducer.begin,
        ["self", "message", "queue", "shard_key"],
    ),
}


@pytest.mark.parametrize("name", METHODS)
def test_signature_and_documentation_are_those_of_the_method_in_python(name: str) -> None:
    method, parameters = METHODS[name]
    assert method.__qualname__ == name
    assert list(inspect.signature(method).parameters) == parameters
    assert "raises" in str(inspect.getdoc(method)).lower() or "Store a message" in str(inspect.getdoc(method))
    assert f"{method.__name__}(self, /, message" in pydoc.plain(pydoc.render_doc(method))


def test_a_producer_has_no_send_of_its_own(broker: mq.Broker) -> None:
    with mq.Producer(broker) as producer, mq.TransactionProducer(broker, "payers", checks) as other:
        assert "send" not in vars(producer)
        assert not {"send", "begin"} & set(vars(other))
        assert next(iter(inspect.signature(producer.send).parameters)) == "message"


def test_a_subclass_overrides_send_and_calls_it(broker: mq.Broker) -> None:
    class Counting(mq.Producer):
        count = 0

        def send(self, message: mq.Message, **options: Any) -> mq.SendResult:
            self.count += 1
            return super().send(message, **options)

    with Counting(broker) as producer:
        assert producer.send(mq.Message("orders", b"x")).queue_offset == 0
        assert producer.send(mq.Message("orders", b"x"), shard_key="k").queue_offset == 1
        assert producer.count == 2


def test_send_can_be_patched_on_a_producer_and_on_its_class(broker: mq.Broker) -> None:
    message = mq.Message("orders", b"x")
    with mq.Producer(broker) as producer:
        with mock.patch.object(producer, "send", autospec=True) as patched:
            producer.send(message, shard_key="k")
        patched.assert_called_once_with(message, shard_key="k")
        with mock.patch.object(mq.Producer, "send") as patched:
            producer.send(message)
        patched.assert_called_once_with(message)
        assert producer.send(message).queue_offset == 0


def test_wrong_arguments_are_told_as_those_of_the_method() -> None:
    with pytest.raises(TypeError, match=r"'Producer'|Producer"):
        mq.Producer.send(object())  # type: ignore[arg-type,call-arg]  # as a caller without types does


def test_a_producer_whose_init_was_not_called_sends_nothing() -> None:
    bare: Any = mq.Producer.__new__(mq.Producer)
    with pytest.raises(AttributeError):
        bare.send(mq.Message("orders", b"x"))
    bare = mq.TransactionProducer.__new__(mq.TransactionProducer)
    with pytest.raises(AttributeError):
        bare.send(mq.Message("orders", b"x"), lambda *_: COMMIT)
    with pytest.raises(AttributeError):
        bare.begin(mq.Message("orders", b"x"))


def test_a_method_in_c_is_of_the_class_that_it_knows() -> None:
    class Own(Sender):
        pass

    with pytest.raises(TypeError, match="transaction_send"):
        in_c("transaction_send")(checks).__set_name__(Own, "send")  # type: ignore[attr-defined]  # as type() does
    with pytest.raises(ValueError, match="nothing"):
        in_c("nothing")(checks).__set_name__(Own, "send")  # type: ignore[attr-defined]  # as above
