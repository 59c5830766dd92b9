"""A RocketMQ broker wrote, with its own clients, and was closed or killed: mq goes on where it was."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest

import mq
from mq.api.local import Delayed
from mq.store.check import problems
from tests.oracle.crossing import (
    FAILING,
    GROUP,
    HOUR_LEVEL,
    PATIENCE,
    QUEUE_COUNT,
    SETTINGS,
    TOPIC,
    Ledger,
    Listener,
    MQSide,
    RocketMQSide,
    now_ms,
    open_beside,
    stored,
    until,
)
from tests.oracle.sending import SIZES
from tests.oracle.server import Came, Server

pytestmark = [pytest.mark.oracle, pytest.mark.rounds, pytest.mark.timeout(1200)]


def rocketmq_retries(server: Server) -> list[int]:
    """How often what failed had failed, for each time that it came to RocketMQ's consumer."""
    return [one.reconsume_times for one in server.received(GROUP, 0, wait=0) if one.body == FAILING]


@dataclass
class Scene:
    """What was there when mq came, and what it made of it."""

    end: str
    ledger: Ledger
    came: list[Came]  # to RocketMQ's consumer
    asked: list[Came]  # of RocketMQ's producer, before the last messages were sent
    late: set[bytes]  # what RocketMQ asked about although it had an end
    opened_ms: int  # when mq came
    found: list[mq.MessageExt]
    received: list[mq.MessageExt]
    checked: list[mq.MessageExt]
    waiting: list[Delayed]
    problems: list[str]

    @property
    def new(self) -> list[mq.MessageExt]:
        """What mq stored."""
        return [message for message in self.found if message.store_time_ms >= self.opened_ms]


@pytest.fixture(scope="module", params=["closed", "killed"])
def scene(
    request: pytest.FixtureRequest, rocketmq: Server, tmp_path_factory: pytest.TempPathFactory
) -> Scene:
    directory = tmp_path_factory.mktemp("taken") / "store"
    ledger = Ledger()
    rocketmq.start(directory, SIZES, {**SETTINGS, "transactionCheckInterval": 1000})
    rocketmq.create_topic(TOPIC, QUEUE_COUNT)
    side = RocketMQSide(rocketmq)
    rocketmq.consume(GROUP, [TOPIC], failing=[FAILING])
    ledger.send_plain(side, "old", 12)
    ledger.send_transactions(side, "old")
    ledger.send_levels(side, "old", [1, 1, 4, 4, HOUR_LEVEL])
    ledger.send_timers(side, "old", [1.5, 9.0], second=now_ms() // 1000 * 1000 + 10_000)
    rocketmq.be_asked("payers", TOPIC, {})
    asked = rocketmq.asked("payers", 4, wait=PATIENCE)
    # A failure that was told may not be stored yet: that it came again shows that it is.
    until(lambda: 1 in rocketmq_retries(rocketmq), lambda: rocketmq.received(GROUP, 0, wait=0))
    ledger.send_levels(side, "late", [1, 2, 2])
    ledger.send_after(side, b"late after 2.2 s", 2.2)
    came = rocketmq.received(GROUP, 15, wait=PATIENCE)
    # RocketMQ's producer waits for no answer to a commit.
    until(
        lambda: b"old committed" in {one.body for one in rocketmq.received(GROUP, 0, wait=0)},
        lambda: rocketmq.received(GROUP, 0, wait=0),
    )
    late = {one.body for one in rocketmq.asked("payers", 0, wait=0)} - ledger.undecided.keys()
    if request.param == "closed":
        came = rocketmq.stop_consumer(GROUP)
        rocketmq.stop()
    else:
        rocketmq.kill()

    checked: list[mq.MessageExt] = []

    def check(message: mq.MessageExt) -> mq.TransactionState:
        checked.append(message)
        return ledger.check(message)

    opened_ms = now_ms()
    with open_beside(directory) as broker:
        with Listener(broker) as listener, MQSide(broker, check) as new_side:
            ledger.recall_the_other(new_side, "old")
            until(
                lambda: not ledger.expected - Counter(message.body for message in stored(broker)),
                lambda: ledger.expected - Counter(message.body for message in stored(broker)),
            )
            # Whatever else there is, of the same second, comes with the next.
            ledger.send_after(new_side, b"last", 1.2)
            listener.wait_for([b"last"])
            # A killed consumer may not have got as far with it as it told.
            failures = sum(one.body == FAILING for one in came) if request.param == "closed" else 1
            until(lambda: max(listener.retries(), default=0) >= failures, listener.retries)
            # What had failed once more, and was not counted when the broker was killed, waits besides.
            until(lambda: {one.queue.topic for one in broker.delayed()} == {TOPIC}, broker.delayed)
        found = stored(broker)
        waiting = list(broker.delayed())
    return Scene(
        request.param,
        ledger,
        came,
        asked,
        late,
        opened_ms,
        found,
        listener.received,
        checked,
        waiting,
        [str(problem) for problem in problems(directory)],
    )


def test_nothing_is_lost_and_nothing_comes_twice(scene: Scene) -> None:
    bodies = scene.ledger.sure(message.body for message in scene.found)
    assert scene.ledger.expected - bodies == Counter()
    assert bodies - scene.ledger.expected == Counter()


def test_mq_delivers_no_delayed_message_of_rocketmq_early(scene: Scene) -> None:
    due = scene.ledger.due
    early = {
        message.body: message.store_time_ms - due[message.body]
        for message in scene.new
        if message.store_time_ms < due.get(message.body, 0)
    }
    assert early == {}


def test_what_is_far_away_waits(scene: Scene) -> None:
    assert sorted(one.delay_level for one in scene.waiting) == [0, 0, 0, HOUR_LEVEL]
    opened_ms = scene.opened_ms
    days = [(one.due_ms - opened_ms) / 86_400_000 for one in scene.waiting if one.delay_level == 0]
    assert sorted(days) == pytest.approx([0.04, 2.5, 2.9], abs=0.01)


def test_the_group_goes_on_from_its_offsets(scene: Scene) -> None:
    """What comes again had failed, or came after a killed broker wrote the offsets down for the last time."""
    before = Counter(one.body for one in scene.came)
    now = Counter(message.body for message in scene.received)
    assert set(scene.ledger.expected) <= set(before + now)
    if scene.end == "closed":
        assert set(before & now) == {FAILING}
        assert now[FAILING] == 1
    assert {message.body for message in scene.received if message.reconsume_times} == {FAILING}


def test_a_transaction_is_decided_by_a_producer_of_mq(scene: Scene) -> None:
    """And no other transaction is checked; unless a halted machine had RocketMQ ask before the end came. It
    stores such a half message once more, and of that one no end is known."""
    undecided = scene.ledger.undecided
    checked = {message.body for message in scene.checked}
    assert set(undecided) <= checked <= set(undecided) | scene.late
    times = Counter({one.body: int(one.properties["TRANSACTION_CHECK_TIMES"]) for one in scene.asked})
    for message in scene.checked:
        assert message.topic == TOPIC
        assert int(message.properties["TRANSACTION_CHECK_TIMES"]) > times[message.body] - 1
    for message in scene.new:
        if message.body in undecided:
            assert message.sys_flag & 0xC == 0x8
            assert message.transaction_id == message.properties["UNIQ_KEY"]
            assert (message.tags, message.keys) == ("T", ("k",))


def test_every_invariant_of_the_directory_holds(scene: Scene) -> None:
    assert scene.problems == []
