"""What may be a listener, and what its result means: nothing that did not run counts as consumed."""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

import mq
import mq.aio
from tests.support.memory.broker import MemoryBroker
from tests.support.recording_listener import (
    PATIENCE,
    Clock,
    Heard,
    committed,
    consuming,
    dead_letters,
    eventually,
    send,
)

UNKNOWN = mq.TransactionState.UNKNOWN

pytestmark = pytest.mark.filterwarnings("error")  # A coroutine that was never awaited is one.


async def coroutine(_message: Any) -> None:
    raise AssertionError("nobody runs it")


def generator(_message: Any) -> Iterator[None]:
    yield
    raise AssertionError("nobody runs it")


async def async_generator(_message: Any) -> AsyncIterator[None]:
    yield
    raise AssertionError("nobody runs it")


class Async:
    async def __call__(self, _message: Any) -> None: ...

    async def method(self, _message: Any) -> None: ...

    @staticmethod
    async def static(_message: Any) -> None: ...

    @classmethod
    async def of_class(cls, _message: Any) -> None: ...


class Yielding:
    def __call__(self, _message: Any) -> Iterator[None]:
        yield

    def method(self, _message: Any) -> Iterator[None]:
        yield


NOT_RUN_BY_THREADS = [
    coroutine,
    Async(),
    Async().method,
    Async.static,
    Async.of_class,
    functools.partial(coroutine),
    functools.partial(functools.partial(Async().method)),
    functools.partial(Async()),
]
RUN_BY_NOBODY = [
    generator,
    async_generator,
    Yielding(),
    Yielding().method,
    functools.partial(generator),
    functools.partial(async_generator),
]


def named(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def make(clock: Clock | None = None) -> MemoryBroker:
    broker = MemoryBroker(clock=clock) if clock else MemoryBroker()
    broker.create_topic("orders", 1)
    return broker


@pytest.mark.parametrize("listener", NOT_RUN_BY_THREADS, ids=named)
def test_an_async_function_is_refused_with_the_way_out(listener: Any) -> None:
    consumer = mq.PushConsumer(make(), "g")
    with pytest.raises(TypeError, match=rf"{named(listener)} is an async function.* mq\.aio\.Consumer"):
        consumer.subscribe("orders", listener=listener)
    with pytest.raises(TypeError, match="is an async function"):
        consumer.subscribe("orders", batch_size=2)(listener)
    with pytest.raises(ValueError, match="nothing is subscribed to"):
        consumer.start()


@pytest.mark.parametrize("listener", RUN_BY_NOBODY, ids=named)
def test_a_generator_function_is_refused_by_threads_and_by_asyncio(listener: Any) -> None:
    broker = make()
    with pytest.raises(TypeError, match=rf"{named(listener)} is an? .*generator function"):
        mq.PushConsumer(broker, "g").subscribe("orders", listener=listener)

    async def main() -> None:
        async with mq.aio.Consumer(broker, "g") as consumer:
            consumer.subscribe("orders")
            with pytest.raises(TypeError, match=rf"{named(listener)} is an? .*generator function"):
                await consumer.run(listener)

    asyncio.run(main())


def test_what_runs_is_a_listener_whatever_it_is_wrapped_in() -> None:
    class Counting:
        def __init__(self) -> None:
            self.count = 0

        def __call__(self, _message: Any) -> None:
            self.count += 1

    counting = Counting()

    @functools.wraps(coroutine)
    def runs_it(message: Any) -> None:  # What it wraps is async; it is not.
        counting(message)

    listeners: list[Any] = [
        counting,
        counting.__call__,
        functools.partial(counting),
        runs_it,
        print,
        Counting,
    ]
    for listener in listeners:
        mq.PushConsumer(make(), "g").subscribe("orders", listener=listener)


def hidden(function: Callable[[Any], object]) -> Callable[[Any], object]:
    """A decorator that hides what it decorates."""

    def call(message: Any) -> object:
        return function(message)

    return call


class Later:
    def __await__(self) -> Iterator[None]:
        yield


def never(*_messages: Any) -> bool:
    raise AssertionError("nobody runs it")


LAZY: list[Callable[[Any], object]] = [
    lambda messages: map(never, [messages]),
    lambda messages: filter(never, [messages]),
    lambda messages: zip([messages], map(never, [messages]), strict=True),
]


@types.coroutine
def old_coroutine(_message: Any) -> Any:
    yield


@pytest.mark.parametrize(
    "function",
    [coroutine, generator, async_generator, old_coroutine, lambda _: Later(), *LAZY],
    ids=named,
)
@pytest.mark.parametrize("batch_size", [None, 2])
def test_a_coroutine_that_comes_back_is_a_failure(
    function: Callable[[Any], object], batch_size: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    broker = make(clock)
    send(broker, "one", "two")
    listener = hidden(function)
    with consuming(broker, listener, batch_size=batch_size, max_reconsume_times=1):
        eventually(lambda: committed(broker) == 2)
        clock.now_ms += 10_000
        broker.deliver_due()
        eventually(lambda: len(dead_letters(broker)) == 2)
    assert sorted(message.body for message in dead_letters(broker)) == [b"one", b"two"]
    assert "hidden.<locals>.call returned a" in caplog.text
    assert "which nobody runs" in caplog.text
    assert "comes again" in caplog.text
    assert "goes to the dead letters, %DLQ%g" in caplog.text


@pytest.mark.parametrize("asked", [mq.Retry(delay_level=-1), mq.Retry], ids=["value", "class"])
def test_a_returned_retry_is_one_that_was_raised(asked: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mq")
    broker = make()
    send(broker, "one")
    heard = Heard()

    def listener(message: mq.MessageExt) -> Any:
        heard(message)
        return asked

    with consuming(broker, listener):
        heard.wait(1)
        eventually(lambda: committed(broker) == 1)
    is_dead = isinstance(asked, mq.Retry)
    assert len(dead_letters(broker)) == is_dead
    (line,) = [record for record in caplog.records if "failed at" in record.getMessage()]
    assert (line.name, line.levelno) == ("mq.consumer", logging.WARNING if is_dead else logging.INFO)


def test_a_returned_retry_of_a_list_has_those_before_consumed() -> None:
    broker = make()
    send(broker, "one", "two", "three")
    done = threading.Event()

    def listener(messages: list[mq.MessageExt]) -> mq.Retry:
        done.set()
        return mq.Retry(from_index=1, delay_level=-1)

    with consuming(broker, listener, batch_size=3):
        assert done.wait(PATIENCE)
        eventually(lambda: committed(broker) == 3)
    assert [message.body for message in dead_letters(broker)] == [b"two", b"three"]


def test_a_returned_retry_blocks_a_queue_in_order() -> None:
    broker = make()
    send(broker, "one", "two")
    heard = Heard()

    def listener(message: mq.MessageExt) -> mq.Retry | None:
        heard(message)
        return mq.Retry(suspend_ms=10) if len(heard.messages) < 3 else None

    with consuming(broker, listener, ordered=True):
        heard.wait(4)
    assert heard.bodies == [b"one", b"one", b"one", b"two"]


def test_other_results_mean_nothing() -> None:
    broker = make()
    results: Iterator[Any] = iter([1, "billed", False, ValueError("returned"), [], object()])
    send(broker, *map(str, range(6)))
    heard = Heard()

    def listener(message: mq.MessageExt) -> Any:
        heard(message)
        return next(results)

    with consuming(broker, listener, threads=1):
        eventually(lambda: committed(broker) == 6)
    assert len(heard.messages) == 6
    assert dead_letters(broker) == []


def test_what_fails_again_is_logged_with_the_name_of_its_listener(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    broker = make(clock)
    send(broker, "one")

    def charge(_message: mq.MessageExt) -> None:
        raise ValueError("no")

    with consuming(broker, charge, max_reconsume_times=1):
        eventually(lambda: committed(broker) == 1)
        clock.now_ms += 10_000
        broker.deliver_due()
        eventually(lambda: len(dead_letters(broker)) == 1)
    lines = [record.getMessage() for record in caplog.records if "failed at" in record.getMessage()]
    assert len(lines) == 2
    for line in lines:
        assert f"failed at {charge.__qualname__} (" in line


@pytest.mark.parametrize("batch_size", [None, 3])
@pytest.mark.parametrize("kind", ["async", "plain", "hidden", "partial"])
def test_asyncio_runs_either_kind_of_function(kind: str, batch_size: int | None) -> None:
    broker = make()
    send(broker, "one", "two", "three")

    async def main() -> None:
        consumer = mq.aio.Consumer(broker, "g")
        consumer.subscribe("orders")
        seen: list[bytes] = []

        def plain(given: Any) -> object:
            messages = given if batch_size else [given]
            seen.extend(message.body for message in messages)
            if len(seen) == 3:
                asyncio.get_running_loop().call_soon(asyncio.ensure_future, consumer.close())
            return "nothing"

        async def of_loop(given: Any) -> object:
            await asyncio.sleep(0)
            return plain(given)

        kinds: dict[str, Callable[[Any], Any]] = {
            "async": of_loop,
            "plain": plain,
            "hidden": hidden(of_loop),
            "partial": functools.partial(of_loop),
        }
        await asyncio.wait_for(consumer.run(kinds[kind], batch_size=batch_size, concurrency=1), PATIENCE)
        assert seen == [b"one", b"two", b"three"]

    asyncio.run(main())
    assert committed(broker) == 3
    assert dead_letters(broker) == []


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("result", ["retry", "generator", "coroutine"])
def test_asyncio_takes_results_as_threads_do(
    is_async: bool, result: str, caplog: pytest.LogCaptureFixture
) -> None:
    broker = make()
    send(broker, "one", "two", "three")

    async def main() -> None:
        consumer = mq.aio.Consumer(broker, "g")
        consumer.subscribe("orders")

        def plain(messages: list[mq.MessageExt]) -> object:
            asyncio.get_running_loop().call_soon(asyncio.ensure_future, consumer.close())
            if result == "retry":
                return mq.Retry(from_index=1, delay_level=-1)
            return generator(messages) if result == "generator" else of_loop_only(messages)

        async def of_loop(messages: list[mq.MessageExt]) -> object:
            return plain(messages)

        async def of_loop_only(_messages: list[mq.MessageExt]) -> object:
            # A plain function's coroutine is awaited; what an async one returns is not.
            assert not is_async
            return generator([])

        listener: Callable[[Any], Any] = of_loop if is_async else plain
        running = consumer.run(listener, batch_size=3, max_reconsume_times=0)
        await asyncio.wait_for(running, PATIENCE)

    asyncio.run(main())
    expected = [b"two", b"three"] if result == "retry" else [b"one", b"two", b"three"]
    assert [message.body for message in dead_letters(broker)] == expected
    assert committed(broker) == 3
    if result != "retry":
        assert "which nobody runs" in caplog.text


def refusals() -> dict[str, Callable[[mq.Broker], object]]:
    async def callback_of_loop(*_: Any) -> Any: ...

    callback: Any = callback_of_loop
    return {
        "selector": lambda broker: mq.Producer(broker, selector=callback),
        "allocate": lambda broker: mq.PushConsumer(broker, "g", allocate=callback),
        "allocate ": lambda broker: mq.PullConsumer(broker, "g", allocate=callback),
        "assignment_listener": lambda broker: mq.PushConsumer(broker, "g", assignment_listener=callback),
        "assignment_listener ": lambda broker: mq.PullConsumer(broker, "g", assignment_listener=callback),
        "assignment_listener  ": lambda broker: mq.aio.Consumer(broker, "g", assignment_listener=callback),
        "check": lambda broker: mq.TransactionProducer(broker, "g", callback),
        "selector ": lambda broker: mq.TransactionProducer(broker, "g", lambda _: UNKNOWN, selector=callback),
    }


@pytest.mark.parametrize("what", refusals())
def test_other_functions_that_are_called_are_refused_if_they_are_async(what: str) -> None:
    with pytest.raises(TypeError, match=rf"{what.strip()} is an async function, .*callback_of_loop"):
        refusals()[what](make())


def test_an_assignment_listener_that_hides_a_coroutine_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def told(*_: Any) -> None: ...

    def listener(*given: Any) -> Awaitable[None]:
        return told(*given)

    broker = make()
    with consuming(broker, Heard(), assignment_listener=listener):
        eventually(lambda: "the listener of assignments failed" in caplog.text)
    assert "returned a coroutine, which nobody runs" in caplog.text


def test_an_async_execute_decides_nothing_and_is_told_at_once() -> None:
    async def of_loop(*_: Any) -> Any: ...

    execute: Any = of_loop
    broker = make()
    with mq.TransactionProducer(broker, "g", lambda _: UNKNOWN) as producer:
        with pytest.raises(TypeError, match=r"execute is an async function .* check will decide"):
            producer.send(mq.Message("orders", b"x"), execute)
        assert len(broker.transactions.undecided()) == 1
    assert broker.topic("orders").queues[0].max_offset == 0
