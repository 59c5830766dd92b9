"""run() of mq.aio with queues that it was assigned: what fails waits in its consumer, since only members of a
group read its retry topic."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from time import monotonic

import pytest

import mq
import mq.aio
from mq.aio import consumer as aio_consumer
from mq.broker.groups.claim import LocalClaim
from mq.broker.groups.manual_claims import AssignedClaim
from mq.client.engine import last_asked, owned_queue, send_back
from mq.client.retry import DELAY_SECONDS
from mq.store.directory.delay_levels import LEVELS, parse_levels
from tests.support import assigned
from tests.support.appending import append_one
from tests.support.memory.broker import MemoryBroker
from tests.support.memory.groups import MemoryClaim
from tests.support.store.small_store import fill, open_small, overwrite_log

PATIENCE = 60.0  # seconds; a machine under load takes its time, and that proves nothing
SOON = (0.001,) * 18  # the delays of the levels, where a test is not to wait for them

Seen = list[tuple[bytes, int]]


@pytest.fixture(params=["memory", "local"])
def broker(request: pytest.FixtureRequest, directory: Path) -> Iterator[mq.Broker]:
    with MemoryBroker() if request.param == "memory" else mq.open(directory) as broker:
        broker.create_topic("orders", 2)
        yield broker


def run(main: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(main(), PATIENCE))


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - what is waited for is nobody's event
        await asyncio.sleep(0.001)


def send(broker: mq.Broker, *bodies: bytes, queue_id: int = 0) -> None:
    for body in bodies:
        append_one(broker, "orders", queue_id, mq.Message("orders", body), body, 0)


def queue_of(broker: mq.Broker, queue_id: int = 0) -> mq.MessageQueue:
    return broker.topic("orders").queues[queue_id].message_queue


def made(broker: mq.Broker, *queue_ids: int, pull_count: int = 32) -> mq.aio.Consumer:
    consumer = mq.aio.Consumer(broker, "billing", pull_count=pull_count)
    consumer.assign([queue_of(broker, queue_id) for queue_id in queue_ids])
    return consumer


def committed(broker: mq.Broker, queue_id: int = 0) -> int | None:
    return assigned.committed(broker, "billing", queue_of(broker, queue_id))


def dead_letters(broker: mq.Broker) -> list[bytes]:
    try:
        queues = broker.topic("%DLQ%billing").queues
    except mq.TopicNotFound:
        return []
    return [message.body for queue in queues for message in queue.read(0).messages]


def test_what_fails_comes_again_and_is_counted(broker: mq.Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while the other calls wait for messages, and know of nothing that is due."""
    monkeypatch.setattr(send_back, "DELAY_SECONDS", SOON, raising=False)
    monkeypatch.setattr(last_asked, "NOTE_SECONDS", 0.0)  # for which they would look again

    async def main() -> None:
        send(broker, b"1", b"2")
        consumer = made(broker, 0)
        seen: Seen = []

        async def listener(message: mq.MessageExt) -> None:
            assert message.topic == "orders"
            seen.append((message.body, message.reconsume_times))
            await asyncio.sleep(0.01)  # the others find nothing meanwhile
            if message.body == b"1" and message.reconsume_times < 2:
                raise LookupError
            if message.body == b"1":
                await consumer.close()

        await consumer.run(listener, concurrency=3)
        assert sorted(seen) == [(b"1", 0), (b"1", 1), (b"1", 2), (b"2", 0)]

    run(main)
    assert committed(broker) == 2
    assert "%RETRY%billing" not in broker.topics()


def test_of_a_list_each_that_failed_comes_again(broker: mq.Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send_back, "DELAY_SECONDS", SOON, raising=False)

    async def main() -> None:
        send(broker, b"1", b"2", b"3")
        consumer = made(broker, 0)
        seen: list[Seen] = []

        async def listener(messages: list[mq.MessageExt]) -> None:
            seen.append([(message.body, message.reconsume_times) for message in messages])
            if len(seen) == 1:
                raise mq.Retry(from_index=1)
            if len(seen) == 3:
                await consumer.close()

        await consumer.run(listener, batch_size=3, concurrency=1)
        assert seen == [[(b"1", 0), (b"2", 0), (b"3", 0)], [(b"2", 1)], [(b"3", 1)]]

    run(main)
    assert committed(broker) == 3


def test_it_comes_again_within_a_minute_unless_a_retry_says_more(
    broker: mq.Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    passed = 0.0
    monkeypatch.setattr(aio_consumer, "monotonic", lambda: monotonic() + passed)
    caplog.set_level(logging.INFO, "mq")

    async def main() -> None:
        send(broker, b"1")
        consumer = made(broker, 0)

        async def listener(message: mq.MessageExt) -> None:
            nonlocal passed
            passed += 3600.0
            if message.reconsume_times == 2:
                raise mq.Retry(delay_level=15)
            if message.reconsume_times < 5:
                raise LookupError
            await consumer.close()

        await consumer.run(listener)

    run(main)
    waits = [re.search(r"comes again here in (\d+) s", record.getMessage()) for record in caplog.records]
    assert [int(wait[1]) for wait in waits if wait] == [10, 30, 1200, 60, 60]


@pytest.mark.parametrize("why", ["times", "asked for"])
def test_what_failed_too_often_goes_to_the_dead_letters(
    broker: mq.Broker, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    monkeypatch.setattr(send_back, "DELAY_SECONDS", SOON, raising=False)

    async def main() -> None:
        send(broker, b"1")
        consumer = made(broker, 0)
        seen: list[int] = []

        def listener(message: mq.MessageExt) -> None:
            seen.append(message.reconsume_times)
            raise LookupError if why == "times" else mq.Retry(delay_level=-1)

        running = asyncio.create_task(consumer.run(listener, max_reconsume_times=2))
        await until(lambda: committed(broker) == 1)
        await consumer.close()
        await running
        assert seen == ([0, 1, 2] if why == "times" else [0])

    run(main)
    assert dead_letters(broker) == [b"1"]


def test_what_the_dead_letters_do_not_take_stays(
    broker: mq.Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object, **_options: object) -> None:
        raise mq.StoreFull("full", path="x")

    monkeypatch.setattr(send_back, "RETRY_SECONDS", 0.001)
    for claim in (LocalClaim, AssignedClaim, MemoryClaim):
        monkeypatch.setattr(claim, "send_back", full)

    async def main() -> None:
        send(broker, b"1")
        consumer = made(broker, 0)
        calls = 0

        async def listener(_message: mq.MessageExt) -> None:
            nonlocal calls
            calls += 1
            if calls == 3:
                await consumer.close()
            else:
                raise LookupError

        await consumer.run(listener, max_reconsume_times=0)

    run(main)
    assert committed(broker) == 1
    assert caplog.text.count("could not be sent back") == 2


def test_each_consumer_gets_what_failed_of_its_own_queues(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two brokers of one directory, as two processes have them."""
    monkeypatch.setattr(send_back, "DELAY_SECONDS", SOON, raising=False)

    async def main(brokers: tuple[mq.Broker, mq.Broker]) -> None:
        brokers[0].create_topic("orders", 2)
        consumers = [made(broker, queue_id) for queue_id, broker in enumerate(brokers)]
        seen: list[Seen] = [[], []]

        async def consume(number: int) -> None:
            async def listener(message: mq.MessageExt) -> None:
                seen[number].append((message.body, message.reconsume_times))
                if message.reconsume_times < 2:
                    raise LookupError

            await consumers[number].run(listener)

        runs = [asyncio.create_task(consume(number)) for number in (0, 1)]
        for queue_id in (0, 1):
            send(brokers[0], b"%d" % queue_id, queue_id=queue_id)
        await until(lambda: [committed(brokers[0], queue_id) for queue_id in (0, 1)] == [1, 1])
        for consumer in consumers:
            await consumer.close()
        await asyncio.gather(*runs)
        assert seen == [[(b"%d" % number, times) for times in range(3)] for number in (0, 1)]

    with mq.open(directory) as first, mq.open(directory) as second:
        run(lambda: main((first, second)))


def test_what_waits_keeps_no_close_waiting_and_comes_to_who_has_the_queue_next(broker: mq.Broker) -> None:
    async def consume(fails_at: bytes, committed_at_last: int) -> Seen:
        seen: Seen = []
        handled: list[bytes] = []

        async def listener(message: mq.MessageExt) -> None:
            seen.append((message.body, message.reconsume_times))
            if message.body == fails_at:
                raise mq.Retry(delay_level=18)  # in two hours
            handled.append(message.body)

        consumer = made(broker, 0)
        running = asyncio.create_task(consumer.run(listener))
        await until(lambda: len(handled) == 2 and committed(broker) == committed_at_last)
        await consumer.close()
        await running
        return seen

    async def main() -> None:
        send(broker, b"1", b"2", b"3")
        assert sorted(await consume(b"2", 1)) == [(b"1", 0), (b"2", 0), (b"3", 0)]
        assert sorted(await consume(b"", 3)) == [(b"2", 0), (b"3", 0)]

    run(main)


@pytest.mark.parametrize(("limit", "value", "count"), [("HELD_COUNT_MAX", 2, 2), ("HELD_SIZE_MAX", 1, 1)])
def test_a_queue_of_which_too_much_waits_is_pulled_from_later(
    broker: mq.Broker, monkeypatch: pytest.MonkeyPatch, limit: str, value: int, count: int
) -> None:
    passed = 0.0
    monkeypatch.setattr(aio_consumer, "monotonic", lambda: monotonic() + passed)
    monkeypatch.setattr(send_back, "DELAY_SECONDS", (1800,) * 18, raising=False)
    monkeypatch.setattr(owned_queue, limit, value, raising=False)

    async def main() -> None:
        nonlocal passed
        send(broker, *(b"%d" % number for number in range(5)))
        consumer = made(broker, 0, 1, pull_count=1)
        seen: list[list[bytes]] = [[], []]
        is_broken = True

        def listener(message: mq.MessageExt) -> None:
            seen[message.queue_id].append(message.body)
            if is_broken and message.queue_id == 0:
                raise LookupError

        def has_come(times: int) -> bool:
            return len(seen[1]) >= times

        running = asyncio.create_task(consumer.run(listener, concurrency=1))
        await until(lambda: len(seen[0]) >= count)
        for count_of_other in (1, 2, 3):  # Each queue is looked at as often as the other.
            send(broker, b"other", queue_id=1)
            await until(partial(has_come, count_of_other))
        assert seen[0] == [b"0", b"1"][:count]
        is_broken, passed = False, 3600.0
        send(broker, b"other", queue_id=1)  # which has the one that waits look at the time
        await until(lambda: committed(broker) == 5)
        await consumer.close()
        await running
        assert sorted(seen[0]) == sorted([b"0", b"1", b"2", b"3", b"4", *[b"0", b"1"][:count]])

    run(main)


def test_the_delays_are_those_of_the_default_levels() -> None:
    assert [seconds * 1000 for seconds in DELAY_SECONDS] == list(parse_levels(LEVELS))


@pytest.mark.parametrize("change", ["reset", "made anew"])
def test_a_queue_that_is_full_of_failures_begins_again(
    broker: mq.Broker, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    monkeypatch.setattr(owned_queue, "HELD_COUNT_MAX", 3)

    async def main() -> None:
        send(broker, *[b"bad"] * 5)
        consumer = made(broker, 0, pull_count=1)
        seen: list[bytes] = []

        async def listener(message: mq.MessageExt) -> None:
            seen.append(message.body)
            if message.body == b"bad":
                raise mq.Retry(delay_level=18)

        running = asyncio.create_task(consumer.run(listener))
        await until(lambda: len(seen) == 3)
        if change == "reset":
            broker.group("billing").reset("orders", to="latest")
        else:
            broker.delete_topic("orders")
            broker.create_topic("orders", 2)
        send(broker, b"good")
        await until(lambda: b"good" in seen)
        await consumer.close()
        await running

    run(main)


def test_a_reset_reaches_a_group_that_has_nothing_yet(broker: mq.Broker) -> None:
    async def main() -> None:
        send(broker, b"1", b"2")
        consumer = mq.aio.Consumer(broker, "billing", consume_from="last")
        consumer.assign([queue_of(broker)])
        seen: list[bytes] = []
        running = asyncio.create_task(consumer.run(lambda message: seen.append(message.body)))
        await asyncio.sleep(0.1)
        broker.group("billing").reset("orders", to="earliest")
        await until(lambda: seen == [b"1", b"2"])
        await consumer.close()
        await running

    run(main)


def test_a_record_that_cannot_be_read_is_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        with open_small(tmp_path / "store") as broker:
            broker.create_topic("orders", 1)
            places = fill(broker, "orders", 5)
            overwrite_log(tmp_path / "store", places[2] + 100, b"\xff" * 8)
            consumer = made(broker, 0)
            seen: list[bytes] = []
            running = asyncio.create_task(consumer.run(lambda message: seen.append(message.body)))
            await until(lambda: len(seen) == 4)
            await consumer.close()
            await running
            assert seen == [b"message 0", b"message 1", b"message 3", b"message 4"]
            assert committed(broker) == 5

    run(main)
    assert "reading goes on at queue offset 3" in caplog.text
