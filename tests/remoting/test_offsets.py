"""What of a queue's offset goes to the broker, and with which request."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from itertools import count
from time import monotonic
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mq.api.results import MessageQueue
from mq.errors import MQError, RequestTimeout
from mq.remoting.client.brokers import Brokers
from mq.remoting.client.connections.connection import Answered
from mq.remoting.client.groups import claims, offsets
from mq.remoting.client.groups.claim_puller import ClaimPuller, PullParameters
from mq.remoting.client.groups.claims import ClaimOwner, RemoteClaim
from mq.remoting.client.groups.offsets import QueueOffset
from mq.remoting.client.namespace import Namespace
from mq.remoting.codec.fields import Request
from mq.remoting.codec.frame import Frame
from mq.remoting.codec.requests.offsets import QueryConsumerOffset, UpdateConsumerOffset
from mq.remoting.codec.response_codes import ResponseCode
from tests.support.interrupting import interrupted_at

QUEUE = MessageQueue("orders", "broker-a", 0)


class Written:
    """Brokers that note the offsets which they are sent. `kept` is what one has that is asked."""

    code = ResponseCode.SUCCESS
    kept: int | None = None

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.waiting: list[Answered] = []
        self.answers = True
        self.is_in_route = True
        self.asked = 0
        self.told = self.answer

    def answer(self) -> Frame | MQError:
        if self.kept is None:
            return Frame(ResponseCode.QUERY_NOT_FOUND)
        return Frame(ResponseCode.SUCCESS, fields={"offset": str(self.kept)})

    def offset_or_none(self, broker_name: str, request: QueryConsumerOffset) -> int | None:
        return self.kept

    def ask_async(self, broker_name: str, request: Request, answered: Answered) -> bool:
        if not self.is_in_route:
            return False
        if isinstance(request, QueryConsumerOffset):
            self.asked += 1
            answered(self.told())
            return True
        assert isinstance(request, UpdateConsumerOffset)
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


def test_a_release_waits_for_a_repeated_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """It could reach the broker after the first one of the next owner."""
    monkeypatch.setattr(offsets, "WRITE_SECONDS", 60.0)
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


def test_a_confirmed_offset_waits_for_the_answer_to_an_earlier_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that handles the earlier one last would keep it."""
    monkeypatch.setattr(offsets, "WRITE_SECONDS", 60.0)
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


def confirmed_at(written: Written, clock: Clock, number: int) -> QueueOffset:
    """An offset that the broker must have on its disk."""
    offset = offset_at(written, clock)
    offset.raise_to(number)
    for _ in range(5):
        offset.write()
        clock.now += 5
    written.offsets.clear()
    return offset


def pass_time(offset: QueueOffset, clock: Clock, ticks: int) -> None:
    """What its owner does every 5 s."""
    for _ in range(ticks):
        offset.write()
        offset.check()
        clock.now += 5


def test_an_offset_that_an_earlier_owner_lowered_is_written_again() -> None:
    """It had a listener that took its time, and released the queue after the new owner had consumed all."""
    written, clock = Written(), Clock()
    offset = confirmed_at(written, clock, 225)
    written.kept = 134
    pass_time(offset, clock, 12)
    assert written.asked == 1
    assert written.offsets == [225] * 4


def test_an_offset_that_the_broker_has_is_not_written_again() -> None:
    written, clock = Written(), Clock()
    offset = confirmed_at(written, clock, 225)
    written.kept = 225
    pass_time(offset, clock, 25)
    assert written.offsets == []
    assert 3 <= written.asked <= 5, "every 30 s"


def test_a_greater_offset_is_another_owners_who_may_seek_back() -> None:
    written, clock = Written(), Clock()
    offset = confirmed_at(written, clock, 134)
    written.kept = 225
    clock.now += 30
    offset.check()
    written.kept = 50
    clock.now += 1000
    offset.check()
    offset.write()
    assert written.offsets == []
    assert written.asked == 1
    offset.raise_to(300)
    offset.write()
    for _ in range(5):
        clock.now += 5
        offset.write()
    clock.now += 30
    offset.check()
    assert written.asked == 2, "its owner is back"


def test_a_broker_that_has_forgotten_an_offset_gets_it_again() -> None:
    written, clock = Written(), Clock()
    offset = confirmed_at(written, clock, 225)
    clock.now += 30
    offset.check()
    offset.write()
    assert written.offsets == [225]


@pytest.mark.parametrize(
    "answer",
    [
        Frame(ResponseCode.SUCCESS, fields={"offset": "many"}),
        Frame(ResponseCode.SUCCESS),
        Frame(ResponseCode.SYSTEM_ERROR),
        RequestTimeout("no answer"),
    ],
)
def test_what_does_not_tell_an_offset_is_asked_again(answer: Frame | MQError) -> None:
    written, clock = Written(), Clock()
    offset = confirmed_at(written, clock, 225)
    written.told = lambda: answer
    clock.now += 30
    offset.check()
    offset.check()
    written.is_in_route = False
    offset.check()
    written.is_in_route = True
    offset.write()
    assert written.offsets == []
    assert written.asked == 2


def test_an_offset_that_was_only_read_is_looked_after_too() -> None:
    """The owner has found everything consumed, and commits nothing before the next message."""
    written, clock = Written(), Clock()
    written.kept = 225
    offset = offset_at(written, clock)
    assert offset.query() == 225
    offset.check()
    assert written.asked == 0
    written.kept = 134
    clock.now += 30
    offset.check()
    offset.write()
    assert written.offsets == [225]


def test_without_an_offset_there_is_nothing_to_look_after() -> None:
    written, clock = Written(), Clock()
    offset = offset_at(written, clock)
    assert offset.query() is None
    clock.now += 1000
    offset.check()
    offset.raise_to(7)
    offset.forget()
    clock.now += 1000
    offset.check()
    offset.write()
    assert written.asked == 0
    assert written.offsets == []


def test_a_release_lowers_no_offset() -> None:
    """The next owner may have begun already, where the consumption is not ordered."""
    written = Written()
    written.kept = 225
    offset = offset_at(written)
    offset.raise_to(134)
    offset.write_and_wait()
    assert written.offsets == []
    offset.raise_to(226)
    offset.write_and_wait()
    assert written.offsets == [226]


def test_a_release_writes_a_smaller_offset_that_was_set() -> None:
    """The consumer sought back, and the write got lost."""
    written = Written()
    written.kept = 225
    offset = offset_at(written)
    offset.raise_to(225)
    offset.write()
    written.answers = False
    with pytest.raises(RequestTimeout):
        offset.set(50)
    written.answers = True
    offset.write_and_wait()
    assert written.offsets == [225, 50]


def test_a_release_writes_what_was_consumed_since_a_seek_back() -> None:
    """Until it is on the broker's disk, an earlier write may come between."""
    written = Written()
    offset = offset_at(written)
    offset.set(50)
    written.kept = 134
    offset.raise_to(60)
    offset.write_and_wait()
    assert written.offsets == [50, 60]


def test_a_lock_that_was_not_renewed_in_time_is_lost_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run ends without its last messages where the lock is lost; the claim must not commit them then."""
    clock = Clock()
    monkeypatch.setattr(claims, "monotonic", clock)
    owner = SimpleNamespace(brokers=Written(), wire_group="billing", namespace=Namespace())
    claim = RemoteClaim(cast(ClaimOwner, owner), QUEUE, locked_at=clock.now)
    messages = claim.while_held(iter("abc"))
    assert next(messages) == "a"
    clock.now += claims.LOCK_SECONDS + 1
    assert list(messages) == []
    claim.renewed(clock.now)
    assert claim.is_lost()
    assert not claim.commit(3)


def test_without_its_lock_a_claim_writes_no_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another member may have it by now."""
    clock, written = Clock(), Written()
    monkeypatch.setattr(claims, "monotonic", clock)
    owner = SimpleNamespace(brokers=written, wire_group="billing", namespace=Namespace())
    claim = RemoteClaim(cast(ClaimOwner, owner), QUEUE, locked_at=clock.now)
    assert claim.commit(134)
    clock.now += claims.LOCK_SECONDS + 1
    assert claim.committed_offset() is None
    claim.write_offset()
    claim.check_offset()
    assert written.offsets == []
    assert written.asked == 0


def test_a_run_may_be_cut_short_while_its_thread_takes_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader does so, for a rebalance, say."""
    owner = SimpleNamespace(brokers=Written(), wire_group="billing", namespace=Namespace())
    claim = RemoteClaim(cast(ClaimOwner, owner), QUEUE, locked_at=monotonic())
    left = claim.while_held(iter("abc"))
    rest: list[str] = []

    def interrupted() -> float:
        monkeypatch.setattr(claims, "monotonic", monotonic)
        rest.extend(left)
        return monotonic()

    monkeypatch.setattr(claims, "monotonic", interrupted)
    assert next(left) == "a"
    assert rest == ["b", "c"]
    assert list(left) == []


OFFSETS = ("mq.remoting.client.groups.offsets",)


def test_a_write_that_is_interrupted_at_any_instruction_stops_no_later_one() -> None:
    for at in count():
        written = Written()
        offset = offset_at(written)
        offset.raise_to(7)
        is_through = interrupted_at(offset.write, at, OFFSETS) is not None
        offset.write()
        assert written.offsets, at
        if is_through:
            break
    assert at > 10


def test_a_check_that_is_interrupted_at_any_instruction_stops_no_later_one() -> None:
    for at in count():
        written, clock = Written(), Clock()
        offset = confirmed_at(written, clock, 225)
        clock.now += 30
        is_through = interrupted_at(offset.check, at, OFFSETS) is not None
        offset.check()
        assert written.asked, at
        if is_through:
            break
    assert at > 10


class Pulls:
    """Brokers that note what they are asked for, and do not answer."""

    def __init__(self) -> None:
        self.asked: list[Frame] = []
        self.cluster = self.remoting = self

    def use(self, topic: str) -> None:
        pass

    def address(self, broker_name: str, broker_id: int = 0) -> str:
        return "127.0.0.1:1"

    def call_async(self, address: str, request: Frame, answered: Answered, timeout: float) -> None:
        self.asked.append(request)


def test_a_pull_that_is_interrupted_at_any_instruction_does_not_silence_its_queue() -> None:
    parameters = SimpleNamespace(
        committed_offset=lambda: None, own_subscription=lambda: None, sub_version=lambda: 1
    )
    for at in count():
        pulls = Pulls()
        puller = ClaimPuller(
            cast(Brokers, pulls),
            "billing",
            QUEUE,
            Namespace(),
            cast(PullParameters, parameters),
            lambda: None,
        )
        pull = partial(puller, 0, 1, 100, None, 0.0)
        is_through = interrupted_at(pull, at, ("mq.remoting.client.groups.claim_puller",)) is not None
        pull()
        assert pulls.asked, at
        if is_through:
            break
    assert at > 10
