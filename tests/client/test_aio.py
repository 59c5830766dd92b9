"""mq for asyncio: what is sent and consumed by tasks, what their failures and cancellations leave behind."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import mq
import mq.aio
from mq.aio import waiter
from mq.aio.producer import OUTBOX_COUNT_MAX
from mq.broker.groups.claim import LocalClaim
from mq.client.engine import send_back
from mq.client.producer import ASYNC_COUNT_MAX
from mq.client.retry import Retry
from tests.support import assigned
from tests.support.appending import append_one
from tests.support.insides import producer_of
from tests.support.memory.broker import MemoryBroker
from tests.support.memory.groups import MemoryClaim

SOON = 30.0  # for what is to happen at once; a machine under load takes its time

Main = Callable[[], Awaitable[None]]


@pytest.fixture(params=["memory", "local"])
def broker(request: pytest.FixtureRequest, directory: Path) -> Iterator[mq.Broker]:
    with MemoryBroker() if request.param == "memory" else mq.open(directory) as broker:
        broker.create_topic("orders", 2)
        yield broker


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = waiters()
    yield
    for thread in waiters():
        if thread not in before:
            thread.join(SOON)
    assert set(waiters()) <= set(before)


def waiters() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "mq-aio-waiter"]


def run(main: Callable[[], Any]) -> None:
    """Run a test's coroutine; nothing in here takes this long, but what hangs should say where."""
    asyncio.run(asyncio.wait_for(main(), 2 * SOON), debug=False)


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - what is waited for is nobody's event
        await asyncio.sleep(0.001)


def send(broker: mq.Broker, *bodies: bytes, queue_id: int = 0, tags: str | None = None) -> None:
    for body in bodies:
        append_one(broker, "orders", queue_id, mq.Message("orders", body, tags=tags), body, 0)


def committed(broker: mq.Broker, group: str = "billing") -> list[int | None]:
    return [assigned.committed(broker, group, queue.message_queue) for queue in broker.topic("orders").queues]


def left(broker: mq.Broker, group: str = "billing") -> list[bytes]:
    """What the group has not consumed yet, by consuming it."""
    with mq.PullConsumer(broker, group) as consumer:
        consumer.subscribe("orders")
        found = []
        while batch := consumer.poll(0):
            found += [message.body for message in batch]
        return found


def subscribed(broker: mq.Broker, group: str = "billing", **options: Any) -> mq.aio.Consumer:
    consumer = mq.aio.Consumer(broker, group, **options)
    consumer.subscribe("orders")
    return consumer


def test_what_one_task_sends_another_consumes(broker: mq.Broker) -> None:
    async def main() -> None:
        async with mq.aio.Producer(broker, timeout=SOON) as producer, subscribed(broker) as consumer:

            async def produce() -> None:
                for number in range(100):
                    await producer.send(mq.Message("orders", b"%d" % number), shard_key=number % 7)

            sending = asyncio.create_task(produce())
            seen = []
            async for message in consumer:
                seen.append(int(message.body))
                if len(seen) == 100:
                    break
            await sending
            assert sorted(seen) == list(range(100))
            for key in range(7):
                assert [number for number in seen if number % 7 == key] == list(range(key, 100, 7))

    run(main)


def test_a_batch_is_sent_as_a_whole(broker: mq.Broker) -> None:
    async def main() -> None:
        async with mq.aio.Producer(broker, timeout=SOON) as producer:
            second = broker.topic("orders").queues[1]
            batch = (mq.Message("orders", body) for body in (b"1", b"2", b"3"))
            result = await producer.send_batch(batch, queue=second)
            assert (result.queue.queue_id, len(result.msg_ids)) == (1, 3)
            with pytest.raises(mq.MessageInvalid):
                await producer.send_batch([])

    run(main)


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_sends_to_a_directory_do_not_hold_up_the_loop_for_a_disk(directory: Path, flush: Any) -> None:
    async def main() -> None:
        with mq.open(directory, flush=flush) as broker:
            async with mq.aio.Producer(broker, retries=0, timeout=SOON) as producer:
                loop_thread = threading.current_thread()
                by: set[threading.Thread] = set()
                producer_of(producer).before_send.append(lambda *_: by.add(threading.current_thread()))
                await producer.send(mq.Message("orders", b"1"))
                await producer.send(mq.Message("orders", bytes(2 << 20)))
                assert (loop_thread in by) == (flush == "async")
                producer_of(producer).before_send.clear()  # what is watched goes one by one
                # More than the send buffer takes without making its caller wait.
                results = await asyncio.gather(
                    *(producer.send(mq.Message("orders", b"%d" % n), timeout=SOON) for n in range(2000))
                )
                assert len({result.msg_id for result in results}) == 2000
                with pytest.raises(mq.MessageTooLarge):
                    await producer.send(mq.Message("orders", bytes(5 << 20)))
                with pytest.raises(TypeError):
                    await producer.send("orders")  # type: ignore[arg-type]  # the mistake
            with pytest.raises(mq.BrokerClosed):
                await producer.send(mq.Message("orders", b"late"))

    run(main)


def test_sends_wait_for_room_in_the_send_buffer_on_the_loop() -> None:
    async def main() -> None:
        taken: list[Future[Any]] = []

        def take(*_: Any, **__: Any) -> Future[Any]:
            taken.append(Future())
            return taken[-1]

        async with mq.aio.Producer(MemoryBroker()) as producer:
            producer_of(producer).send_async = take  # type: ignore[method-assign]  # a send buffer that is stuck
            message = mq.Message("orders", b"x")
            sending = [asyncio.create_task(producer.send(message)) for _ in range(2000)]
            await until(lambda: len(taken) == OUTBOX_COUNT_MAX)
            await asyncio.sleep(0.01)
            assert len(taken) == OUTBOX_COUNT_MAX < ASYNC_COUNT_MAX
            sending[0].cancel()
            taken[1].set_result(None)
            await until(lambda: len(taken) == OUTBOX_COUNT_MAX + 2)
            assert taken[0].cancelled()
            for task in sending:
                task.cancel()
            await asyncio.wait(sending)

    run(main)


def test_sending_lets_other_tasks_have_their_turn(directory: Path) -> None:
    async def main() -> None:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0)
                ticks += 1

        with mq.open(directory) as broker:
            async with mq.aio.Producer(broker, timeout=SOON) as producer:
                ticking = asyncio.create_task(tick())
                for _ in range(200_000):
                    await producer.send(mq.Message("orders", b"x"))
                    if ticks >= 5:
                        break
                ticking.cancel()
        assert ticks >= 5

    run(main)


def test_the_loop_consumes_a_message_when_it_asks_for_the_next(broker: mq.Broker) -> None:
    async def main() -> None:
        send(broker, b"1", b"2", b"3")
        async with subscribed(broker) as consumer:
            with suppress(LookupError):
                async for message in consumer:
                    if message.body == b"2":
                        raise LookupError

    run(main)
    assert left(broker) == [b"2", b"3"]


def test_the_message_at_which_a_loop_was_left_comes_again_unless_it_is_committed(broker: mq.Broker) -> None:
    async def main() -> None:
        send(broker, b"1", b"2", b"3")
        seen = []
        async with subscribed(broker) as consumer:
            for last in (b"1", b"2"):
                async for message in consumer:
                    seen.append(message.body)
                    if message.body == last:
                        break
            assert seen == [b"1", b"1", b"2"]
            consumer.commit()
            assert committed(broker)[0] == 2

    run(main)
    assert left(broker) == [b"3"]


def test_polls_hand_out_batches_and_closing_commits_the_last(broker: mq.Broker) -> None:
    async def main() -> None:
        send(broker, b"1", b"2", b"3")
        async with subscribed(broker) as consumer:
            assert [message.body for message in await consumer.poll(0, count_max=2)] == [b"1", b"2"]
        with pytest.raises(mq.BrokerClosed, match="make another"):
            await consumer.poll()
        with suppress(LookupError):
            async with subscribed(broker) as consumer:
                assert len(await consumer.poll(SOON)) == 1
                assert await consumer.poll(0.02) == []
                send(broker, b"4")
                assert len(await consumer.poll(SOON)) == 1
                raise LookupError

    run(main)
    assert left(broker) == [b"4"]


def test_closing_in_a_finally_clause_is_leaving_by_an_exception(broker: mq.Broker) -> None:
    async def main() -> None:
        send(broker, b"1")
        consumer = subscribed(broker)
        try:
            await consumer.poll(SOON)
            raise LookupError
        finally:
            await consumer.close()

    with pytest.raises(LookupError):
        run(main)
    assert left(broker) == [b"1"]


def test_a_poll_that_is_cancelled_has_taken_nothing(broker: mq.Broker) -> None:
    async def main() -> None:
        async with subscribed(broker) as consumer:
            messages = aiter(consumer)
            for _ in range(3):
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(anext(messages), 0.01)
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(consumer.poll(SOON), 0.01)
            send(broker, b"1")
            assert (await asyncio.wait_for(anext(messages), SOON)).body == b"1"

    run(main)


def test_two_tasks_do_not_ask_at_a_time(broker: mq.Broker) -> None:
    async def main() -> None:
        async with subscribed(broker) as consumer:
            asking = asyncio.create_task(consumer.poll(SOON))
            await asyncio.sleep(0.01)
            for ask in (lambda: consumer.poll(0), lambda: anext(aiter(consumer))):
                with pytest.raises(RuntimeError, match="another task is asking"):
                    await ask()
            send(broker, b"1")
            assert len(await asking) == 1
            assert await consumer.poll(0) == []  # A refused one has what the other got come no second time.

    run(main)


def test_a_consumer_closes_whose_run_was_cut_short_while_it_cleared_up(
    broker: mq.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Cut(BaseException):
        """As KeyboardInterrupt, which asyncio lets through."""

    def cut(*_: object, **_options: object) -> None:
        raise Cut

    async def use() -> None:
        async with subscribed(broker) as consumer:

            async def close(_message: mq.MessageExt) -> None:
                await consumer.close()
                monkeypatch.setattr(asyncio, "gather", cut)

            await consumer.run(close)

    async def main() -> None:
        send(broker, b"1")
        with pytest.raises(Cut):
            await use()
        monkeypatch.undo()

    run(main)
    assert broker.group("billing").members() == []


def test_closing_ends_all_waits(broker: mq.Broker) -> None:
    async def main() -> None:
        consumer = subscribed(broker)

        async def loop() -> int:
            return len([message async for message in consumer])

        waiting = asyncio.create_task(loop())
        await asyncio.sleep(0.02)
        await consumer.close()
        await consumer.close()
        assert await waiting == 0
        assert broker.group("billing").members() == []

    run(main)


def test_a_loop_over_a_backlog_lets_other_tasks_have_their_turn(broker: mq.Broker) -> None:
    async def main() -> None:
        send(broker, *(b"x" for _ in range(3000)))
        async with subscribed(broker) as consumer:
            done = asyncio.get_running_loop().call_later(0.005, lambda: asyncio.create_task(consumer.close()))
            async for _ in consumer:
                consumer.seek(broker.topic("orders").queues[0], 0)  # a backlog without end
            assert done.when() > 0

    run(main)


def test_many_consumers_share_one_thread(broker: mq.Broker) -> None:
    async def main() -> None:
        consumers = [subscribed(broker, f"group-{number % 5}") for number in range(20)]
        asking = {asyncio.create_task(consumer.poll(2 * SOON)): consumer for consumer in consumers}
        await asyncio.sleep(0.3)  # for the members to share the queues
        assert len(waiters()) == 1
        send(broker, b"0", queue_id=0)
        send(broker, b"1", queue_id=1)
        done = 0
        while done < 10:  # two queues of five groups each
            finished, _ = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
            done += sum(len(task.result()) for task in finished)
            # A consumer that does not rebalance releases no queue that another member owns by now.
            again = [asking.pop(task) for task in finished]
            if done < 10:
                asking.update({asyncio.create_task(consumer.poll(2 * SOON)): consumer for consumer in again})
        for consumer in consumers:
            await consumer.close()
        assert [len(await task) for task in asking] == [0] * len(asking)

    run(main)


def test_a_waiter_that_joins_a_running_wait_is_woken_too(broker: mq.Broker) -> None:
    async def main() -> None:
        broker.create_topic("parcels", 1)
        first = subscribed(broker)
        async with mq.aio.Consumer(broker, "vans") as second:
            second.subscribe("parcels")
            waiting = asyncio.create_task(first.poll(4 * SOON))
            await asyncio.sleep(0.02)
            asking = asyncio.create_task(second.poll(4 * SOON))
            await asyncio.sleep(0.02)
            append_one(broker, "parcels", 0, mq.Message("parcels", b"x"), b"x", 0)
            assert len(await asking) == 1
            await first.close()
            assert await waiting == []

    run(main)


def test_a_message_wakes_within_the_blink_of_an_eye(broker: mq.Broker) -> None:
    async def main() -> None:
        async with subscribed(broker) as consumer:
            for _ in range(20):
                sender = threading.Timer(0.002, send, (broker, b"x"))
                sender.start()
                assert len(await consumer.poll(SOON)) == 1
                sender.join()

    run(main)


def test_a_takeover_from_another_group_member(broker: mq.Broker) -> None:
    async def main() -> None:
        first, second = subscribed(broker), subscribed(broker)
        await first.poll(0)
        assert len(first.assignment()) == 2
        send(broker, b"0", queue_id=0)
        send(broker, b"1", queue_id=1)
        asking = asyncio.create_task(second.poll(SOON))
        await asyncio.sleep(0.02)
        await first.close()
        bodies = [message.body for message in await asking]
        bodies += [message.body for message in await second.poll(SOON)]
        assert sorted(bodies) == [b"0", b"1"]
        await second.close()

    run(main)


def test_all_waiting_members_learn_of_a_released_queue(broker: mq.Broker) -> None:
    async def main() -> None:
        with mq.PullConsumer(broker, "billing", client_id="0") as holder:
            holder.subscribe("orders")
            holder.poll(0)
            consumers = [subscribed(broker, client_id=client_id) for client_id in "12"]
            asking = [asyncio.create_task(consumer.poll(SOON)) for consumer in consumers]
            await asyncio.sleep(0.05)
            for queue_id in (0, 1):
                send(broker, b"x", queue_id=queue_id)
        assert [len(await task) for task in asking] == [1, 1]
        for consumer in consumers:
            await consumer.close()

    run(main)


def test_run_calls_the_listener_with_every_message_and_commits_each(broker: mq.Broker) -> None:
    async def main() -> None:
        send(broker, *(b"a%d" % number for number in range(50)), queue_id=0)
        send(broker, *(b"b%d" % number for number in range(50)), queue_id=1)
        seen: list[bytes] = []
        consumer = subscribed(broker)

        async def listener(message: mq.MessageExt) -> None:
            seen.append(message.body)
            await asyncio.sleep(0)
            if len(seen) == 100:
                await consumer.close()

        await consumer.run(listener, concurrency=7)
        assert len(seen) == len(set(seen)) == 100
        assert committed(broker) == [50, 50]
        assert broker.group("billing").members() == []

    run(main)


def test_run_calls_at_most_so_many_at_a_time(broker: mq.Broker) -> None:
    async def main() -> None:
        send(broker, *(b"x" for _ in range(30)))
        running = most = calls = 0
        consumer = subscribed(broker)

        async def listener(_: mq.MessageExt) -> None:
            nonlocal running, most, calls
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.002)
            running -= 1
            calls += 1
            if calls == 30:
                await consumer.close()

        await consumer.run(listener, concurrency=4)
        assert most == 4

    run(main)


def test_lists_of_one_queue(broker: mq.Broker) -> None:
    async def main() -> None:
        send(broker, b"1", b"2", b"3", b"4", b"5")
        seen: list[list[bytes]] = []
        async with subscribed(broker, pull_count=4) as consumer:

            async def listener(messages: list[mq.MessageExt]) -> None:
                seen.append([message.body for message in messages])
                if sum(map(len, seen)) == 5:
                    await consumer.close()

            await consumer.run(listener, batch_size=3, concurrency=1)
        assert [body for batch in seen for body in batch] == [b"1", b"2", b"3", b"4", b"5"]
        assert max(map(len, seen)) == 3

    run(main)


def test_one_slow_message_holds_the_commit_back_and_nothing_else(broker: mq.Broker) -> None:
    async def main() -> None:
        send(broker, b"slow", b"1", b"2")
        others = asyncio.Event()
        consumer = subscribed(broker)
        consumed = []

        async def listener(message: mq.MessageExt) -> None:
            if message.body == b"slow":
                await others.wait()
                assert committed(broker)[0] == 0
                await consumer.close()
            else:
                consumed.append(message.body)
                if len(consumed) == 2:
                    others.set()

        await consumer.run(listener)
        assert committed(broker)[0] == 3

    run(main)


class Failing:
    """A listener that fails at a body until it came so many times, and closes its consumer after that."""

    def __init__(self, consumer: mq.aio.Consumer, error: BaseException, times: int) -> None:
        self.consumer = consumer
        self.error = error
        self.times = times
        self.seen: list[tuple[str, int]] = []

    async def __call__(self, message: mq.MessageExt) -> None:
        self.seen.append((message.topic, message.reconsume_times))
        if len(self.seen) > self.times:
            await self.consumer.close()
            return
        raise self.error


@pytest.mark.parametrize("error", [LookupError("no"), asyncio.CancelledError()])
def test_what_fails_comes_again_with_its_topic_and_is_counted(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    now = 0
    broker = MemoryBroker(clock=lambda: now)

    async def main() -> None:
        nonlocal now
        broker.create_topic("orders", 2)
        send(broker, b"1")
        listener = Failing(subscribed(broker), error, 2)

        def came(times: int) -> bool:
            return len(listener.seen) >= times

        running = asyncio.create_task(listener.consumer.run(listener))
        for times, delay_ms in ((1, 10_000), (2, 30_000)):
            await until(partial(came, times))
            await asyncio.sleep(0.01)
            assert len(listener.seen) == times
            now += delay_ms
            broker.create_topic(f"wake-{times}")  # the clock moved: its waiter checks again
        await running
        assert listener.seen == [("orders", 0), ("orders", 1), ("orders", 2)]

    with caplog.at_level(logging.ERROR, "mq"):
        run(main)
    assert sum("failed at Failing" in record.message for record in caplog.records) == 2
    assert left(broker) == []


@pytest.mark.parametrize("before", ["poll", "seek"])
def test_what_fails_comes_again_to_one_that_has_asked_before(before: str) -> None:
    """It is a member since then, and was one that takes no retries."""
    now = 0
    broker = MemoryBroker(clock=lambda: now)

    async def main() -> None:
        nonlocal now
        broker.create_topic("orders", 2)
        send(broker, b"0", b"1", b"2")
        listener = Failing(subscribed(broker), Retry(delay_level=1), 1)
        if before == "poll":
            polled = await listener.consumer.poll(0, count_max=2)
            assert [message.body for message in polled] == [b"0", b"1"]
        else:
            listener.consumer.seek(broker.topic("orders").queues[0], 2)
        running = asyncio.create_task(listener.consumer.run(listener))
        await until(lambda: len(listener.seen) == 1)
        await until(lambda: broker.group("billing").retrying() == {"orders": 1})
        now += 1_000
        broker.create_topic("wake")  # the clock moved: its waiter checks again
        await running
        assert listener.seen == [("orders", 0), ("orders", 1)]

    run(main)
    assert left(broker) == []
    assert committed(broker)[0] == 3


def test_a_list_is_the_listeners_own(broker: mq.Broker) -> None:
    """It may take messages out of it, and fail."""

    async def main() -> None:
        send(broker, b"1", b"2", b"3")
        async with subscribed(broker) as consumer:

            async def listener(messages: list[mq.MessageExt]) -> None:
                asyncio.get_running_loop().call_soon(asyncio.create_task, consumer.close())
                messages.clear()
                raise Retry(delay_level=-1)

            await consumer.run(listener, batch_size=3)

    run(main)
    dead = broker.topic("%DLQ%billing").queues[0].read(0).messages
    assert [message.body for message in dead] == [b"1", b"2", b"3"]
    assert committed(broker)[0] == 3


def test_a_retry_chooses_the_delay_or_the_dead_letters(broker: mq.Broker) -> None:
    async def main() -> None:
        send(broker, b"1", b"2", b"3")
        async with subscribed(broker) as consumer:

            async def listener(messages: list[mq.MessageExt]) -> None:
                asyncio.get_running_loop().call_soon(asyncio.create_task, consumer.close())
                raise Retry(from_index=1, delay_level=-1)

            await consumer.run(listener, batch_size=3)

    run(main)
    dead = broker.topic("%DLQ%billing").queues[0].read(0).messages
    assert [message.body for message in dead] == [b"2", b"3"]
    assert committed(broker)[0] == 3


def test_what_cannot_be_sent_back_stays_and_comes_again(
    broker: mq.Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise mq.StoreFull("full", path="x")

    async def main() -> None:
        monkeypatch.setattr(send_back, "RETRY_SECONDS", 0.001)
        for claim in (LocalClaim, MemoryClaim):
            monkeypatch.setattr(claim, "send_back", full)
        send(broker, b"1")
        listener = Failing(subscribed(broker), LookupError("no"), 3)
        await listener.consumer.run(listener)
        assert listener.seen == [("orders", times) for times in range(4)]
        assert committed(broker)[0] == 1

    run(main)
    assert "could not be sent back" in caplog.text


def test_a_paused_queue_whose_message_cannot_be_sent_back_keeps_no_consumer_open(
    broker: mq.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would never come to another attempt."""

    def full(*_: Any, **__: Any) -> None:
        raise mq.StoreFull("full", path="x")

    async def main() -> None:
        for claim in (LocalClaim, MemoryClaim):
            monkeypatch.setattr(claim, "send_back", full)
        send(broker, b"1")
        consumer = subscribed(broker)
        failed = asyncio.Event()

        async def listener(_: mq.MessageExt) -> None:
            consumer.pause(consumer.assignment())
            failed.set()
            raise LookupError("no")

        running = asyncio.create_task(consumer.run(listener))
        await failed.wait()
        await asyncio.sleep(0.05)
        await consumer.close()
        await running
        assert committed(broker)[0] in {None, 0}

    run(main)


def test_a_run_that_is_cancelled_cancels_its_calls_and_they_come_again(broker: mq.Broker) -> None:
    async def main() -> None:
        send(broker, b"1", b"2", b"3")
        started = cancelled = 0

        async def listener(message: mq.MessageExt) -> None:
            nonlocal started, cancelled
            if message.body == b"1":
                return
            try:
                started += 1
                await asyncio.sleep(SOON)
            except asyncio.CancelledError:
                cancelled += 1
                raise

        async with subscribed(broker) as consumer:
            running = asyncio.create_task(consumer.run(listener, concurrency=2))
            await until(lambda: started == 2)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert cancelled == 2
            assert committed(broker)[0] == 1
            assert [message.body for message in await consumer.poll(0)] == [b"2", b"3"]

    run(main)
    assert left(broker) == []
    assert "%RETRY%billing" not in broker.topics()


def test_closing_waits_for_the_listeners_that_run(broker: mq.Broker) -> None:
    async def main() -> None:
        send(broker, b"1", b"2")
        started = finished = 0

        async def listener(_: mq.MessageExt) -> None:
            nonlocal started, finished
            started += 1
            await asyncio.sleep(0.02)
            finished += 1

        consumer = subscribed(broker)
        running = asyncio.create_task(consumer.run(listener, concurrency=2))
        await until(lambda: started == 2)
        await consumer.close()
        assert (finished, committed(broker)[0]) == (2, 2)
        await running

    run(main)


def test_a_close_that_is_cancelled_closes_without_the_listeners(broker: mq.Broker) -> None:
    async def main() -> None:
        send(broker, b"1")
        started = asyncio.Event()

        async def listener(_: mq.MessageExt) -> None:
            started.set()
            await asyncio.sleep(2 * SOON)

        consumer = subscribed(broker)
        running = asyncio.create_task(consumer.run(listener))
        await started.wait()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(consumer.close(), 0.01)
        await asyncio.wait([running])
        assert broker.group("billing").members() == []

    run(main)
    assert left(broker) == [b"1"]


def test_a_message_is_stored_once_under_its_key(directory: Path) -> None:
    async def main(broker: mq.Broker) -> None:
        async with mq.aio.Producer(broker, dedup_window=600.0, timeout=SOON) as producer:
            message = mq.Message("orders", b"paid")
            sends = [producer.send(message, dedup_key="order-1") for _ in range(5)]
            results = await asyncio.gather(*sends)
            assert len({result.offset_msg_id for result in results}) == 1
            other = await producer.send(message, dedup_key="order-2")
            assert other.offset_msg_id != results[0].offset_msg_id

    with mq.open(directory) as broker:
        broker.create_topic("orders", 2)
        run(partial(main, broker))
        assert left(broker) == [b"paid", b"paid"]


def test_a_queue_goes_to_another_member_only_when_its_listener_has_ended(broker: mq.Broker) -> None:
    async def main() -> None:
        for queue_id in (0, 1):
            send(broker, b"%d" % queue_id, queue_id=queue_id)
        inside: set[int] = set()
        open_lock = asyncio.Event()
        seen: list[int] = []

        async def listener(message: mq.MessageExt) -> None:
            assert message.queue_id not in inside
            inside.add(message.queue_id)
            await open_lock.wait()
            inside.discard(message.queue_id)
            seen.append(message.queue_id)

        first, second = subscribed(broker), subscribed(broker)
        runs = [asyncio.create_task(first.run(listener))]
        await until(lambda: len(inside) == 2)
        runs.append(asyncio.create_task(second.run(listener)))
        await asyncio.sleep(0.05)
        assert second.assignment() == set()  # what is to be its own is still in a listener's hands
        open_lock.set()
        await until(lambda: bool(second.assignment()))
        for consumer in (first, second):
            await consumer.close()
        await asyncio.gather(*runs)
        assert sorted(seen) == [0, 1]

    run(main)


def test_seek_pause_and_assign_work_as_without_asyncio(broker: mq.Broker) -> None:
    async def main() -> None:
        send(broker, b"1", b"2")
        queue = broker.topic("orders").queues[0]
        async with mq.aio.Consumer(broker, "billing") as consumer:
            consumer.assign([queue])
            assert len(await consumer.poll(0)) == 2
            consumer.seek(queue, 1)
            assert consumer.position(queue) == 1
            consumer.pause([queue])
            asking = asyncio.create_task(consumer.poll(SOON))
            await asyncio.sleep(0.01)
            consumer.resume([queue])
            assert [message.body for message in await asking] == [b"2"]
            consumer.seek_to_time(queue, 0)
            assert len(await consumer.poll(0)) == 2
            consumer.commit()
            assert consumer.committed(queue) == 2
            assert consumer.assignment() == {queue.message_queue}

    run(main)


def test_options_that_make_no_sense_are_refused(broker: mq.Broker) -> None:
    async def listener(_: mq.MessageExt) -> None: ...

    async def main() -> None:
        async with subscribed(broker) as consumer:
            with pytest.raises(ValueError, match="concurrency is 0"):
                await consumer.run(listener, concurrency=0)
            with pytest.raises(ValueError, match="max_reconsume_times is -2"):
                await consumer.run(listener, max_reconsume_times=-2)
            with pytest.raises(TypeError, match="cannot be"):
                await consumer.run(None)  # type: ignore[arg-type]  # the mistake
            with pytest.raises(ValueError, match="timeout is -1"):
                await consumer.poll(-1)
            with pytest.raises(ValueError, match="timeout is nan"):
                await consumer.poll(float("nan"))
        with pytest.raises(ValueError, match="nothing to consume"):
            await mq.aio.Consumer(broker, "billing").poll()

    run(main)


def test_import_mq_does_not_load_asyncio() -> None:
    script = (
        "import sys, mq; assert 'asyncio' not in sys.modules; mq.aio.Consumer; assert not hasattr(mq, 'x')"
    )
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", script], cwd=root, check=True, timeout=60)


def test_the_waiter_forgets_a_broker_without_consumers(broker: mq.Broker) -> None:
    async def main() -> None:
        async with subscribed(broker) as consumer:
            asking = asyncio.create_task(consumer.poll(SOON))
            await until(lambda: broker in waiter.waiters)
        assert await asking == []

    run(main)
    assert broker not in waiter.waiters


def test_a_close_does_not_depend_on_which_thread_enters_first(
    broker: mq.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever close() checks, the waiter's thread sleeps again for its caller."""

    class Unfair:
        """Lets no caller in before the thread sleeps again, if it does at all."""

        def __init__(self, waiting: waiter.WaiterThread) -> None:
            self.until = time.monotonic() + 20
            self._waiting = waiting
            self._changed = waiting._changed

        def __getattr__(self, name: str) -> Any:
            return getattr(self._changed, name)

        def wait(self, timeout: float | None = None) -> None:
            self._changed.wait(timeout)
            if timeout is not None:
                assert time.monotonic() < self.until, "it goes on for ever"
                self._changed.wait_for(lambda: self._waiting._looked_at, 0.3)

    async def main() -> None:
        broker.create_topic("parcels", 1)
        first = subscribed(broker)
        async with mq.aio.Consumer(broker, "vans") as second:
            second.subscribe("parcels")
            waiting = asyncio.create_task(first.poll(SOON))
            asking = asyncio.create_task(second.poll(SOON))
            await until(lambda: broker in waiter.waiters)
            of_both = waiter.waiters[broker]
            await until(lambda: len(of_both._looked_at) == 2)
            unfair = Unfair(of_both)
            monkeypatch.setattr(of_both, "_changed", unfair)
            await first.close()
            assert await waiting == []
            send(broker, b"x")
            append_one(broker, "parcels", 0, mq.Message("parcels", b"x"), b"x", 0)
            assert len(await asking) == 1

    run(main)


@pytest.mark.parametrize("how", ["poll", "loop", "run"])
@pytest.mark.parametrize("is_assigned", [True, False])
def test_of_a_topic_made_anew_every_message_is_consumed(
    broker: mq.Broker, how: str, is_assigned: bool
) -> None:
    async def main() -> None:
        send(broker, b"old1", b"old2", b"old3")
        consumer = mq.aio.Consumer(broker, "billing")
        if is_assigned:
            consumer.assign(broker.topic("orders").queues)
        else:
            consumer.subscribe("orders")
        seen: list[bytes] = []

        async def take(message: mq.MessageExt) -> None:
            seen.append(message.body)

        async def consume() -> None:
            if how == "run":
                await consumer.run(take)
            elif how == "loop":
                async for message in consumer:
                    await take(message)
            else:
                while True:
                    seen.extend(message.body for message in await consumer.poll(SOON))

        consuming = asyncio.create_task(consume())
        await until(lambda: len(seen) >= 3)
        await asyncio.sleep(0.01)
        broker.delete_topic("orders")
        broker.create_topic("orders", 2)
        send(broker, b"new1", b"new2", b"new3", b"new4")
        await until(lambda: len(seen) >= 7)
        assert seen[-4:] == [b"new1", b"new2", b"new3", b"new4"]
        await consumer.close()
        consuming.cancel()
        with suppress(asyncio.CancelledError, mq.BrokerClosed):
            await consuming
        assert committed(broker)[0] == 4

    run(main)
