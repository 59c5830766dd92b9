"""What of a queue's offset goes to the broker, and with which request."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mq.api.results import MessageQueue
from mq.errors import RequestTimeout
from mq.remoting.client.brokers import Brokers
from mq.remoting.client.connections.connection import Answered
from mq.remoting.client.groups.claims import ClaimOwner, RemoteClaim
from mq.remoting.client.groups.offsets import QueueOffset
from mq.remoting.client.namespace import Namespace
from mq.remoting.codec.frame import Frame
from mq.remoting.codec.requests.offsets import UpdateConsumerOffset
from mq.remoting.codec.response_codes import ResponseCode

QUEUE = MessageQueue("orders", "broker-a", 0)


class Written:
    """Brokers that note the offsets which they are sent."""

    code = ResponseCode.SUCCESS

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.waiting: list[Answered] = []
        self.answers = True
        self.is_in_route = True

    def ask_async(self, broker_name: str, request: UpdateConsumerOffset, answered: Answered) -> bool:
        if not self.is_in_route:
            return False
        self.offsets.append(request.commit_offset)
        if self.answers:
            answered(Frame(self.code))
        else:
            self.waiting.append(answered)
        return True

    def ask(self, broker_name: str, request: UpdateConsumerOffset, **options: Any) -> Written:
        if not self.answers:
            raise RequestTimeout("no answer")
        self.offsets.append(request.commit_offset)
        return self


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def offset_at(written: Written, clock: Callable[[], float] = monotonic) -> QueueOffset:
    return QueueOffset(cast(Brokers, written), "billing", QUEUE, clock=clock)


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


def test_an_offset_is_written_until_the_broker_confirms_it() -> None:
    written = Written()
    offset = offset_at(written)
    offset.raise_to(7)
    written.is_in_route = False
    offset.write()
    assert written.offsets == []
    written.is_in_route, written.answers = True, False
    offset.write()
    offset.write()
    assert written.offsets == [7], "the first write is not answered yet"
    written.waiting.pop()(RequestTimeout("no answer"))
    written.answers = True
    offset.write()
    offset.write()
    assert written.offsets == [7, 7]


def test_a_confirmed_offset_is_written_again_until_it_must_be_on_the_brokers_disk() -> None:
    written, clock = Written(), Clock()
    offset = offset_at(written, clock)
    offset.raise_to(7)
    for _ in range(10):
        offset.write()
        offset.write()
        clock.now += 5
    assert written.offsets == [7] * 4
    offset.write_and_wait()
    assert written.offsets == [7] * 4


def test_a_broker_that_was_killed_gets_the_offset_that_it_had_confirmed() -> None:
    """It was away for longer than it takes to put an offset on disk."""
    written, clock = Written(), Clock()
    offset = offset_at(written, clock)
    offset.raise_to(7)
    offset.write()
    written.answers = False
    for _ in range(6):
        clock.now += 5
        offset.write()
        written.waiting.pop()(RequestTimeout("no answer"))
    written.answers = True
    written.offsets.clear()
    for _ in range(10):
        offset.write()
        clock.now += 5
    assert written.offsets == [7] * 4
    assert offset.to_carry() is None


def test_a_release_waits_for_a_repeated_write() -> None:
    """It could reach the broker after the first one of the next owner."""
    written, clock = Written(), Clock()
    offset = offset_at(written, clock)
    offset.raise_to(7)
    offset.write()
    clock.now += 5
    written.answers = False
    offset.write()
    written.answers = True
    answers = threading.Timer(0.1, lambda: written.waiting.pop()(Frame(written.code)))
    answers.start()
    offset.write_and_wait()
    assert written.waiting == []
    answers.join()


def test_a_release_writes_an_offset_whose_write_got_lost() -> None:
    written = Written()
    offset = offset_at(written)
    offset.raise_to(7)
    written.answers = False
    offset.write()
    written.answers = True
    offset.write_and_wait()
    assert written.offsets == [7, 7]


def test_an_offset_that_a_broker_refused_is_not_confirmed() -> None:
    written = Written()
    written.code = ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    offset = offset_at(written)
    offset.raise_to(7)
    offset.write()
    written.code = ResponseCode.SUCCESS
    offset.write_and_wait()
    assert written.offsets == [7, 7]


def test_the_answer_for_an_older_offset_confirms_no_newer_one() -> None:
    written = Written()
    written.answers = False
    offset = offset_at(written)
    offset.raise_to(7)
    offset.write()
    offset.raise_to(9)
    written.waiting.pop()(Frame(ResponseCode.SUCCESS))
    written.answers = True
    offset.write_and_wait()
    offset.write()
    assert written.offsets == [7, 9]


def test_a_write_carries_an_offset_so_that_no_pull_does_later() -> None:
    written = Written()
    written.answers = False
    offset = offset_at(written)
    offset.raise_to(7)
    offset.write()
    assert offset.to_carry() is None


def test_a_reset_that_could_not_be_written_is_written_by_the_next_call() -> None:
    written = Written()
    owner = SimpleNamespace(
        brokers=written, wire_group="billing", namespace=Namespace(), is_unresponsive=lambda _name: False
    )
    claim = RemoteClaim(cast(ClaimOwner, owner), QUEUE)
    claim.reset(3)
    written.answers = False
    with pytest.raises(RequestTimeout):
        claim.committed()
    written.answers = True
    assert claim.committed() == 3
    assert written.offsets == [3]


def test_the_offset_of_a_topic_that_was_deleted_is_not_written() -> None:
    """Another one of its name may be there by now."""
    written = Written()
    owner = SimpleNamespace(
        brokers=written,
        wire_group="billing",
        namespace=Namespace(),
        is_unresponsive=lambda _name: False,
        released=lambda _claim: None,
    )
    claim = RemoteClaim(cast(ClaimOwner, owner), QUEUE)
    assert claim.commit(7)
    claim.begin_anew()
    assert not claim.is_current()
    assert not claim.commit(8)
    claim.write_offset()
    claim.release()
    assert written.offsets == []


def test_a_confirmed_offset_waits_for_the_answer_to_an_earlier_write() -> None:
    """A broker that handles the earlier one last would keep it."""
    written = Written()
    offset = offset_at(written)
    offset.raise_to(100)
    written.answers = False
    offset.write()
    written.answers = True
    answers = threading.Timer(0.1, lambda: written.waiting.pop()(Frame(written.code)))
    answers.start()
    offset.set(50)
    assert written.waiting == []
    assert written.offsets == [100, 50]
    offset.write()
    assert written.offsets == [100, 50], "the broker has it"


def test_an_earlier_offset_that_the_broker_confirmed_last_is_written_over() -> None:
    written = Written()
    offset = offset_at(written)
    offset.raise_to(100)
    written.answers = False
    offset.write()
    offset.raise_to(110)
    written.answers = True
    written.waiting.pop()(Frame(written.code))
    offset.write()
    assert written.offsets == [100, 110]
