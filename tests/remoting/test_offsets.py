"""What of a queue's offset goes to the broker, and with which request."""

from __future__ import annotations

from typing import Any, cast

from mq.api.results import MessageQueue
from mq.remoting.client.brokers import Brokers
from mq.remoting.client.groups.offsets import QueueOffset
from mq.remoting.codec.requests.offsets import UpdateConsumerOffset
from mq.remoting.codec.response_codes import ResponseCode

QUEUE = MessageQueue("orders", "broker-a", 0)


class Written:
    """Brokers that note the offsets which they are sent."""

    code = ResponseCode.SUCCESS

    def __init__(self) -> None:
        self.offsets: list[int] = []

    def send_oneway(self, broker_name: str, request: UpdateConsumerOffset) -> None:
        self.offsets.append(request.commit_offset)

    def ask(self, broker_name: str, request: UpdateConsumerOffset, **options: Any) -> Written:
        self.offsets.append(request.commit_offset)
        return self


def offset_at(written: Written) -> QueueOffset:
    return QueueOffset(cast(Brokers, written), "billing", QUEUE)


def test_a_pull_carries_an_offset_once() -> None:
    offset = offset_at(Written())
    offset.set(0)
    assert offset.to_carry() is None, "the broker has it"
    offset.raise_to(7)
    assert offset.to_carry() == 7
    assert offset.to_carry() is None
    offset.raise_to(9)
    assert offset.to_carry() == 9


def test_an_offset_that_a_pull_carried_is_written_all_the_same() -> None:
    """The pull may be lost."""
    written = Written()
    offset = offset_at(written)
    offset.raise_to(7)
    offset.to_carry()
    offset.write()
    offset.write()
    assert written.offsets == [7]


def test_nothing_that_was_confirmed_is_carried_by_a_later_pull() -> None:
    """A broker may handle pulls after requests that were sent later: an older offset would win."""
    written = Written()
    offset = offset_at(written)
    offset.raise_to(7)
    offset.write_and_wait()
    assert written.offsets == [7]
    assert offset.to_carry() is None
