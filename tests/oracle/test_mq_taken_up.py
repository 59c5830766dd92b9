"""mq wrote and was closed or killed: a real RocketMQ broker goes on from there, with clients of its own."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from dataclasses import dataclass

import pytest

from tests.oracle.agreement import assert_library_looks_up
from tests.oracle.crossing import (
    FAILING,
    GROUP,
    PATIENCE,
    PAYERS,
    SETTINGS,
    TOPIC,
    RocketMQSide,
    now_ms,
    until,
)
from tests.oracle.leaving import Left, leave, leave_killed
from tests.oracle.sending import SIZES
from tests.oracle.server import Came, Server
from tests.support import oracle
from tests.support.oracle import Record, Report

pytestmark = [pytest.mark.oracle, pytest.mark.rounds, pytest.mark.timeout(1200)]

FAR_COUNT = 3  # timers that no test waits for


@dataclass
class Scene:
    """What was there when RocketMQ came, and what it made of it."""

    end: str
    left: Left
    offsets: dict[int, int]  # of the group, as the broker had them when it came
    opened_ms: int
    came: list[Came]
    asked: list[Came]
    waiting: int  # timers, as the broker's wheel has them
    report: Report

    def found(self) -> list[tuple[bytes, Record]]:
        """What the topic holds in the end."""
        ledger = self.left.ledger
        bodies = {*ledger.expected, *ledger.never, *ledger.unsure}
        names = {hashlib.sha256(body).hexdigest(): body for body in bodies}
        return [
            (names[record.body_sha256], record) for record in self.report.records if record.topic == TOPIC
        ]


@pytest.fixture(scope="module", params=["closed", "killed"])
def scene(
    request: pytest.FixtureRequest, rocketmq: Server, tmp_path_factory: pytest.TempPathFactory
) -> Scene:
    scratch = tmp_path_factory.mktemp("left")
    directory = scratch / "store"
    rocketmq.launch()
    left = leave(directory) if request.param == "closed" else leave_killed(directory, scratch / "left")
    ledger = left.ledger
    opened_ms = now_ms()
    rocketmq.start(directory, SIZES, SETTINGS)
    offsets = rocketmq.offsets(GROUP, TOPIC)
    side = RocketMQSide(rocketmq)
    ledger.recall_the_other(side, "old")
    rocketmq.consume(GROUP, [TOPIC])
    rocketmq.be_asked(PAYERS, TOPIC, ledger.answers)
    end = time.monotonic() + PATIENCE
    came: list[Came] = []
    while missing := set(ledger.expected) - set(left.received) - {one.body for one in came}:
        assert time.monotonic() < end, missing
        came = rocketmq.received(GROUP, len(came) + 1, wait=1.0)
    # Whatever else there is, of the same second, comes with the next.
    ledger.send_after(side, b"last", 1.2)
    # A killed consumer may not have got as far with what failed as it told.
    failures = left.received.count(FAILING) if request.param == "closed" else 1
    while True:
        again = max((one.reconsume_times for one in came if one.body == FAILING), default=0)
        if again >= failures and b"last" in {one.body for one in came}:
            break
        assert time.monotonic() < end, again
        came = rocketmq.received(GROUP, len(came) + 1, wait=1.0)
    until(
        lambda: {one.body for one in rocketmq.asked(PAYERS, 0, wait=0)} >= ledger.undecided.keys(),
        lambda: rocketmq.asked(PAYERS, 0, wait=0),
    )
    asked = rocketmq.asked(PAYERS, 0, wait=0)
    if request.param == "closed":
        # What came is delivered a moment before it counts as read from the wheel.
        until(lambda: rocketmq.timer()["pending"] <= FAR_COUNT, rocketmq.timer)
    waiting = rocketmq.timer()["pending"]
    rocketmq.stop()
    report = oracle.read(directory, SIZES)
    return Scene(request.param, left, offsets, opened_ms, came, asked, waiting, report)


def test_nothing_is_lost_and_nothing_comes_twice(scene: Scene) -> None:
    assert_library_looks_up(scene.report)
    bodies = scene.left.ledger.sure(body for body, _ in scene.found())
    expected = scene.left.ledger.expected
    assert expected - bodies == Counter()
    if scene.end == "closed":
        assert bodies - expected == Counter()


def test_rocketmq_delivers_no_delayed_message_of_mq_early(scene: Scene) -> None:
    due = scene.left.ledger.due
    early = {
        body: record.store_time_ms - due[body]
        for body, record in scene.found()
        if record.store_time_ms < due.get(body, 0)
    }
    assert early == {}


def test_what_is_not_to_come_does_not(scene: Scene) -> None:
    """Rolled back, recalled before or after, or due in an hour: these wait."""
    assert scene.left.ledger.never.isdisjoint(body for body, _ in scene.found())
    if scene.end == "closed":  # RocketMQ does not count what it finds after a kill.
        assert scene.waiting == FAR_COUNT


def test_the_group_goes_on_from_its_offsets(scene: Scene) -> None:
    left = scene.left
    if scene.end == "closed":
        assert scene.offsets == left.offsets
        first = [one.body for one in scene.came if one.reconsume_times == 0]
        assert set(first).isdisjoint(left.received)
        assert [one.body for one in scene.came].count(FAILING) == 1
    failed = [one for one in scene.came if one.reconsume_times]
    assert {(one.body, one.topic) for one in failed} == {(FAILING, TOPIC)}


def test_a_transaction_is_decided_by_a_producer_of_rocketmq(scene: Scene) -> None:
    left = scene.left
    if scene.end == "closed":
        assert {one.body for one in scene.asked} == set(left.ledger.undecided)
        for one in scene.asked:
            assert int(one.properties["TRANSACTION_CHECK_TIMES"]) > left.checks[one.body]
    committed = [one for one in scene.came if one.body in left.ledger.undecided]
    for one in committed:
        assert one.sys_flag & 0xC == 0x8
        assert one.properties["TAGS"] == "T"
        assert one.transaction_id == one.properties["UNIQ_KEY"] == one.msg_id
