"""A queue of a cluster as columns, from brokers that do what a test scripts: late, behind, dead, or lying."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import mq
from mq.api.broker import MessageQueue
from mq.broker.local import LocalBroker
from mq.errors import NotPermitted, RemotingError, RequestTimeout, StoreCorrupted, TopicNotFound
from mq.remoting.client.columns import queue_scan, scans
from mq.remoting.client.columns.queue_scan import QueueScan
from mq.remoting.client.columns.scans import RemoteScans
from mq.remoting.client.connections import remoting as connections
from mq.remoting.client.connections.connection import PendingAnswer
from mq.remoting.client.connections.options import RemotingOptions
from mq.remoting.client.namespace import Namespace
from mq.remoting.codec.bodies.route import BrokerAddresses
from mq.remoting.codec.fields import decode_fields, encode_fields
from mq.remoting.codec.frame import Frame
from mq.remoting.codec.requests.consuming import PullAnswer, PullMessage
from mq.remoting.codec.requests.offsets import GetMaxOffset, OffsetAnswer
from mq.remoting.codec.response_codes import ResponseCode
from tests.support.appending import append_one
from tests.support.store.small_store import open_small

pytest.importorskip("pyarrow")

MASTER, SLAVE = "10.0.0.1:10911", "10.0.0.2:10911"
QUEUE = MessageQueue("orders", "mq", 0)
COUNT = 100
PER_PULL = 7
BIG = 1 << 20

Script = Callable[[str, PullMessage], Frame | None]


def answer(code: ResponseCode, next_offset: int, end: int, body: bytes = b"", suggested: int = 0) -> Frame:
    return Frame(code, encode_fields(PullAnswer(suggested, next_offset, 0, end)), body)


def body_of(offset: int) -> bytes:
    return b"message %02d" % offset


ROUTE = {"mq": BrokerAddresses("mq", {0: MASTER, 1: SLAVE})}


class Cluster:
    """A master and a slave of the same queue. What the script says goes first; None is what a broker says."""

    def __init__(self, store: LocalBroker) -> None:
        self.script: Script = lambda _address, _request: None
        self.refuse: Callable[[Frame], Frame | None] = lambda _frame: None
        self.ends = {MASTER: COUNT, SLAVE: COUNT}
        self.dead: set[str] = set()
        self.asked: list[tuple[str, int]] = []
        self.refreshed = 0
        self.brokers: dict[str, BrokerAddresses] = {}
        self._store = store
        self.remoting = self.cluster = self
        self.options = RemotingOptions(timeout=0.01)

    def address(self, name: str, broker_id: int = 0) -> str | None:
        return self.brokers[name].broker_addrs.get(broker_id)

    def master(self, name: str) -> str:
        self.brokers = ROUTE
        return MASTER

    def route(self, topic: str) -> None:
        """It is known by then."""
        self.brokers = ROUTE

    def use(self, topic: str) -> None:
        """Nothing: its route is never dropped."""

    def refresh(self, topic: str) -> None:
        self.refreshed += 1

    def call(self, address: str, request: Frame, timeout: float | None = None) -> Frame:
        return self.submit(address, request).result()

    def submit(self, address: str, request: Frame, timeout: float | None = None) -> PendingAnswer:
        pending = PendingAnswer()
        try:
            pending.answered(self._answered(address, request))
        except (RemotingError, RequestTimeout) as error:
            pending.answered(error)
        return pending

    def fields(self, declared: Any, answered: Frame) -> Any:
        return decode_fields(declared, answered.fields)

    def never_answer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Leave every later request without an answer and without an error; calls have their own limit."""

        def call(address: str, *_: object) -> Frame:
            raise RequestTimeout(f"{address} did not answer within 0.0 s")

        self.call = call  # type: ignore[method-assign,assignment]  # for one test
        monkeypatch.setattr(connections, "LATE_SECONDS", 0.01)
        self.submit = lambda *_: PendingAnswer()  # type: ignore[method-assign]  # for one test

    def _answered(self, address: str, frame: Frame) -> Frame:
        if address in self.dead:
            raise RemotingError(f"{address} is dead", address=address)
        if (refused := self.refuse(frame)) is not None:
            return refused
        if frame.code != PullMessage.CODE:
            offset = self.ends[address] if frame.code == GetMaxOffset.CODE else 0
            return Frame(0, encode_fields(OffsetAnswer(offset)))
        request = decode_fields(PullMessage, frame.fields)
        self.asked.append((address, request.queue_offset))
        scripted = self.script(address, request)
        return scripted or self.stored(request, self.ends[address])

    def stored(self, request: PullMessage, end: int) -> Frame:
        offset = request.queue_offset
        if offset > end:
            return answer(ResponseCode.PULL_OFFSET_MOVED, end, end)
        if offset == end:
            return answer(ResponseCode.PULL_NOT_FOUND, offset, end)
        count = min(request.max_msg_nums, PER_PULL, end - offset)
        found = self._store.puller(QUEUE)(offset, count, BIG, None, 0.0)
        body = b"".join(message.record for message in found.messages)
        return answer(ResponseCode.SUCCESS, found.next_offset, end, body)


@pytest.fixture
def cluster(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setattr(queue_scan, "BACKOFF_SECONDS", (0.001, 0.002))
    with open_small(directory) as broker:
        broker.create_topic("orders", 1)
        for body in map(body_of, range(COUNT)):
            append_one(broker, "orders", 0, mq.Message("orders", body), body, 0)
        yield Cluster(broker)


def scan_of(cluster: Cluster, tags: str = "*", retry_seconds: float = 1.0) -> QueueScan:
    columns = ("queueOffset", "body")
    brokers: Any = cluster
    return QueueScan(brokers, "readers", QUEUE, QUEUE, columns, "us", tags, retry_seconds)


def read(scan: QueueScan, start: int, end: int, count_max: int = 10, byte_max: int = BIG) -> list[int]:
    """The offsets of all messages in between; each has the body it was sent with."""
    offsets, at = [], start
    while at < end:
        batch = scan.read(at, end, count_max, byte_max)
        assert not batch.is_out
        assert batch.records.num_rows <= count_max
        for row in batch.records.to_pylist():
            assert row["body"] == body_of(row["queueOffset"])
            offsets.append(row["queueOffset"])
        assert batch.next_offset > at
        at = batch.next_offset
    assert at == end
    return offsets


@pytest.mark.parametrize("count_max", [1, 10, 1000])
@pytest.mark.parametrize("byte_max", [1, 300, BIG])
def test_a_range_is_read_whole(cluster: Cluster, count_max: int, byte_max: int) -> None:
    assert read(scan_of(cluster), 3, COUNT - 2, count_max, byte_max) == list(range(3, COUNT - 2))
    asked = [offset for _, offset in cluster.asked]
    assert asked == sorted(set(asked))  # Nothing is pulled twice.


def test_a_broker_that_says_so_sends_readers_to_its_slave(cluster: Cluster) -> None:
    def suggest(address: str, request: PullMessage) -> Frame:
        found = cluster.stored(request, COUNT)
        found.fields["suggestWhichBrokerId"] = "1"
        return found

    cluster.script = suggest
    assert read(scan_of(cluster), 0, COUNT) == list(range(COUNT))
    assert [address for address, _ in cluster.asked] == [MASTER, *[SLAVE] * (len(cluster.asked) - 1)]


def test_a_slave_reads_on_where_the_master_died(cluster: Cluster) -> None:
    scan = scan_of(cluster)
    assert read(scan, 0, 20) == list(range(20))
    cluster.dead.add(MASTER)
    assert read(scan, 20, COUNT) == list(range(20, COUNT))
    assert cluster.asked[-1][0] == SLAVE
    assert cluster.refreshed


def test_what_a_slave_does_not_have_yet_is_no_loss(cluster: Cluster) -> None:
    """It is asked again, as is the master, until the messages are there."""
    cluster.dead.add(MASTER)
    cluster.ends[SLAVE] = 40
    calls = [0]

    def copy(address: str, request: PullMessage) -> None:
        calls[0] += 1
        cluster.ends[SLAVE] = min(COUNT, 40 + calls[0])

    cluster.script = copy
    assert read(scan_of(cluster, retry_seconds=30.0), 0, COUNT) == list(range(COUNT))
    cluster.script = lambda _address, _request: None
    cluster.ends[SLAVE] = 40
    for start in (40, 60):
        with pytest.raises(RemotingError, match=r"slave 10\.0\.0\.2:10911 of broker 'mq' does not have"):
            scan_of(cluster, retry_seconds=0.3).read(start, COUNT, 10, BIG)


def test_what_a_master_does_not_have_is_a_loss(cluster: Cluster) -> None:
    cluster.ends[MASTER] = 40
    batch = scan_of(cluster).read(60, COUNT, 10, BIG)
    assert (batch.is_out, batch.next_offset, batch.max_offset, batch.records.num_rows) == (True, 60, 40, 0)
    batch = scan_of(cluster).read(40, COUNT, 10, BIG)
    assert (batch.is_out, batch.next_offset, batch.records.num_rows) == (False, 40, 0)


def test_messages_that_are_deleted_meanwhile_are_a_loss(cluster: Cluster) -> None:
    """A broker says that none matches, of a queue of which all do; by tags this could not be detected."""
    cluster.script = lambda _address, request: (
        answer(ResponseCode.PULL_RETRY_IMMEDIATELY, 50, COUNT) if request.queue_offset < 50 else None
    )
    batch = scan_of(cluster).read(3, COUNT, 10, BIG)
    assert (batch.is_out, batch.min_offset, batch.next_offset) == (True, 50, 3)
    batch = scan_of(cluster, "paid").read(3, 40, 10, BIG)
    assert (batch.is_out, batch.next_offset) == (False, 40)


def test_tags_go_with_the_pull(cluster: Cluster) -> None:
    seen = []

    def note(_address: str, request: PullMessage) -> None:
        seen.append((request.subscription, request.expression_type, request.consumer_group))

    cluster.script = note
    scan_of(cluster, "paid || sent").read(0, 5, 10, BIG)
    assert set(seen) == {("paid || sent", "TAG", "readers")}


def test_a_damaged_record_is_named_and_passed(cluster: Cluster) -> None:
    def damage(_address: str, request: PullMessage) -> Frame | None:
        found = cluster.stored(request, COUNT)
        found.body = found.body.replace(body_of(13), body_of(14))
        return found

    cluster.script = damage
    scan = scan_of(cluster)
    assert read(scan, 0, 13) == list(range(13))
    with pytest.raises(StoreCorrupted, match="queue offset 13 of orders/0") as raised:
        scan.read(13, COUNT, 10, BIG)
    assert raised.value.queue_offset == 13
    assert f"from {cluster.asked[-1][0]}" in str(raised.value)
    assert read(scan, 14, 30) == list(range(14, 30))


@pytest.mark.parametrize(
    "lie",
    [
        lambda offset: answer(ResponseCode.SUCCESS, offset, COUNT, b"x"),
        lambda offset: answer(ResponseCode.SUCCESS, offset + 1, COUNT),
        lambda offset: answer(ResponseCode.PULL_RETRY_IMMEDIATELY, offset, COUNT),
        lambda _: Frame(ResponseCode.SUCCESS, {"nextBeginOffset": "many"}),
        lambda _: Frame(ResponseCode.SYSTEM_BUSY, remark="busy"),
    ],
)
def test_an_answer_that_leads_nowhere_is_an_error_in_time(
    cluster: Cluster, lie: Callable[[int], Frame]
) -> None:
    cluster.script = lambda _address, request: lie(request.queue_offset)
    with pytest.raises(RemotingError):
        scan_of(cluster, retry_seconds=0.3).read(5, COUNT, 10, BIG)
    assert len(cluster.asked) > 1


@pytest.mark.parametrize(
    ("code", "remark", "error"),
    [
        (ResponseCode.TOPIC_NOT_EXIST, "no such topic", TopicNotFound),
        (ResponseCode.NO_PERMISSION, "not you", NotPermitted),
        (ResponseCode.SYSTEM_ERROR, "org.apache.rocketmq.acl.common.AclException: no", RemotingError),
    ],
)
def test_what_is_refused_for_good_is_not_asked_again(
    cluster: Cluster, code: ResponseCode, remark: str, error: type[mq.MQError]
) -> None:
    cluster.script = lambda _address, _request: Frame(code, remark=remark)
    with pytest.raises(error):
        scan_of(cluster, retry_seconds=60.0).read(5, COUNT, 10, BIG)
    assert len(cluster.asked) == 1


# Many queues at once.


def scans_of(cluster: Cluster) -> RemoteScans:
    brokers: Any = cluster
    return RemoteScans(brokers, Namespace(), lambda: 0)


def test_the_end_of_a_queue_is_what_its_master_said_last(cluster: Cluster) -> None:
    looking = scans_of(cluster)
    assert looking.limits([QUEUE]) == ([0], [COUNT])
    cluster.dead.add(MASTER)
    cluster.ends[SLAVE] = 40
    assert looking.limits([QUEUE]) == ([0], [COUNT])
    assert scans_of(cluster).limits([QUEUE]) == ([0], [40])  # Nothing was told yet.
    cluster.dead.add(SLAVE)
    with pytest.raises(RemotingError, match="is dead"):
        scans_of(cluster).limits([QUEUE])


def test_limits_are_told_to_accounts_that_may_pull_alone(cluster: Cluster) -> None:
    def refuse(frame: Frame) -> Frame | None:
        return None if frame.code == PullMessage.CODE else Frame(ResponseCode.NO_PERMISSION, remark="no")

    cluster.refuse = refuse
    looking = scans_of(cluster)
    assert looking.limits([QUEUE]) == ([0], [COUNT])
    assert looking.limits([QUEUE]) == ([0], [COUNT])
    assert [offset for _, offset in cluster.asked] == [0, 0, COUNT]  # What is new comes along.


def test_a_wait_ends_with_a_message_or_with_its_time(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    now = [0.0]

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds
        if len(slept) == 3:
            cluster.ends[MASTER] = COUNT + 1

    monkeypatch.setattr(scans, "sleep", sleep)
    monkeypatch.setattr(scans, "monotonic", lambda: now[0])
    looking = scans_of(cluster)
    looking.wait({QUEUE: COUNT}, 10.0)
    assert len(slept) == 3
    looking.wait({QUEUE: COUNT + 1}, 10.0)
    assert sum(slept) == pytest.approx(10.0 + sum(slept[:3]))
    looking.wait({QUEUE: COUNT + 1}, 10.0, version=1)  # The topics changed.
    assert len(slept) < 60


def test_a_request_that_nobody_ends_is_a_timeout(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    scan = scan_of(cluster, retry_seconds=0.05)
    cluster.never_answer(monkeypatch)
    with pytest.raises((RequestTimeout, RemotingError), match="did not answer within"):
        read(scan, 0, COUNT)
    scans = scans_of(cluster)
    with pytest.raises((RequestTimeout, RemotingError), match="did not answer within"):
        scans.limits([QUEUE])
