"""The producer alone: which failures it tries again, under which id, how long, on which queue; what waits in
its send buffer; its hooks. What a broker does with what it gets is the contract suite's matter."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest

import mq
from mq.client import selector
from mq.client.fault import FaultTable, pause_after
from mq.client.producer import ASYNC_COUNT_MAX, RETRIED_CODES
from mq.client.selector import by_hash, next_but
from tests.support.memory.broker import MemoryBroker
from tests.support.records import encode_record

Failure = BaseException | None


class ScriptedBroker(MemoryBroker):
    """Fails as `script` says, an entry for each attempt; without an entry it stores. Batches count as one."""

    def __init__(self, *script: Failure, **options: Any) -> None:
        super().__init__(**options)
        self.script = list(script)
        self.attempts: list[tuple[int, str | None]] = []  # queue, unique id
        self.batches: list[int] = []
        self.blocked = threading.Event()
        self.blocked.set()

    def append(
        self,
        queue: mq.MessageQueue,
        message: mq.Message,
        body: bytes,
        sys_flag: int,
        unique_id: str | None = None,
    ) -> mq.SendResult:
        self.blocked.wait()
        self.attempts.append((queue.queue_id, unique_id))
        self._follow_script()
        return super().append(queue, message, body, sys_flag, unique_id)

    def append_batch(self, queue: mq.MessageQueue, messages: Sequence[mq.Message]) -> mq.SendResult:
        self.blocked.wait()
        self.batches.append(len(messages))
        self._follow_script()
        return super().append_batch(queue, messages)

    def _follow_script(self) -> None:
        failure = self.script.pop(0) if self.script else None
        if failure is not None:
            raise failure

    def stored(self, topic: str = "orders") -> list[mq.MessageExt]:
        queues = self.topic(topic).queues
        return [message for queue in queues for message in queue.read(0, count_max=100_000).messages]


def lost(unique_id: str | None = None) -> mq.RequestTimeout:
    error = mq.RequestTimeout("no answer")
    error.unique_id = unique_id
    return error


def refused(code: int) -> mq.RemotingError:
    return mq.RemotingError(f"code {code}", code=code)


MESSAGE = mq.Message("orders", b"body", tags="t", keys="k")
STORED = mq.MessageExt(encode_record("orders", 0, 0, 0, b"body", b""), "mq")


def make(*script: Failure, **options: Any) -> tuple[ScriptedBroker, mq.Producer]:
    broker = ScriptedBroker(*script)
    broker.create_topic("orders", 4)
    # Longer than the usual 3 s, in which a slow machine may stand still.
    return broker, mq.Producer(broker, **{"timeout": 60.0, **options})


@pytest.mark.parametrize("failure", [lost(), mq.RemotingError("no connection"), refused(2), refused(14)])
def test_what_may_pass_is_tried_again(failure: Exception) -> None:
    broker, producer = make(failure, failure)
    assert producer.send(MESSAGE).status is mq.SendStatus.SEND_OK
    assert len(broker.attempts) == 3
    assert len(broker.stored()) == 1


def test_every_code_that_rocketmq_lists_is_tried_again_and_no_other() -> None:
    for code in range(2000):
        broker, producer = make(refused(code))
        if code in RETRIED_CODES:
            producer.send(MESSAGE)
        else:
            with pytest.raises(mq.RemotingError):
                producer.send(MESSAGE)
        assert len(broker.attempts) == 1 + (code in {1, 2, 14, 16, 17, 204, 205, 1500})


@pytest.mark.parametrize(
    "failure",
    [
        mq.StoreFull("full", path="x"),
        mq.StorePoisoned("poisoned"),
        mq.MessageInvalid("no"),
        mq.TopicNotFound("orders"),
        mq.NotPermitted("no"),
        mq.BrokerClosed("closed"),
        mq.ForkedBroker("forked"),
        refused(13),
        OSError(5, "I/O"),
        KeyboardInterrupt(),
    ],
)
def test_what_will_not_pass_is_raised_at_once(failure: Any) -> None:
    broker, producer = make(failure)
    with pytest.raises(type(failure)) as caught:
        producer.send(MESSAGE)
    assert caught.value is failure
    assert len(broker.attempts) == 1


def test_a_final_refusal_after_a_retry_is_raised_as_it_is() -> None:
    broker, producer = make(lost(), refused(13))
    with pytest.raises(mq.RemotingError, match="code 13"):
        producer.send(MESSAGE)
    assert len(broker.attempts) == 2


def test_after_the_last_attempt_all_of_them_are_told() -> None:
    failures = [lost(), refused(2), mq.RemotingError("no connection")]
    broker, producer = make(*failures)
    with pytest.raises(mq.SendFailed, match=r"3 attempts in .* no connection") as caught:
        producer.send(MESSAGE)
    assert caught.value.attempts == tuple(("mq", failure) for failure in failures)
    assert caught.value.__cause__ is failures[-1]
    assert len(broker.attempts) == 3


@pytest.mark.parametrize("retries", [0, 1, 5])
def test_the_number_of_attempts_is_an_option(retries: int) -> None:
    broker, producer = make(*[lost()] * 10, retries=retries)
    with pytest.raises(mq.SendFailed):
        producer.send(MESSAGE)
    assert len(broker.attempts) == retries + 1


def test_a_retry_keeps_the_unique_id_of_what_may_be_stored() -> None:
    broker, producer = make(lost("ID" * 16), mq.RemotingError("no connection"))
    result = producer.send(MESSAGE)
    assert [unique_id for _, unique_id in broker.attempts] == [None, "ID" * 16, "ID" * 16]
    assert result.msg_id == "ID" * 16
    assert broker.message("ID" * 16).body == b"body"


@pytest.mark.parametrize(
    "options",
    [{"queue": mq.MessageQueue("orders", "mq", 2)}, {"shard_key": "k"}],
)
def test_where_the_caller_chose_the_queue_there_is_one_attempt(options: dict[str, Any]) -> None:
    for failure in (lost(), refused(2)):
        broker, producer = make(failure)
        with pytest.raises(type(failure)) as caught:
            producer.send(MESSAGE, **options)
        assert caught.value is failure
        assert len(broker.attempts) == 1


def test_with_a_selector_there_is_one_attempt() -> None:
    broker, producer = make(lost(), selector=lambda queues, _message, _key: queues[1])
    with pytest.raises(mq.RequestTimeout):
        producer.send(MESSAGE)
    assert producer.send(MESSAGE).queue.queue_id == 1
    assert [queue_id for queue_id, _ in broker.attempts] == [1, 1]


def test_the_timeout_covers_all_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def later() -> float:
        nonlocal now
        now += 0.4
        return now

    monkeypatch.setattr("mq.client.producer.monotonic", later)
    broker, producer = make(*[lost()] * 50, timeout=3.0, retries=40)
    with pytest.raises(mq.RequestTimeout, match="not sent within 3 s"):
        producer.send(MESSAGE)
    assert 2 <= len(broker.attempts) <= 8
    with pytest.raises(mq.RequestTimeout, match=r"not sent within 0\.5 s"):
        producer.send(MESSAGE, timeout=0.5)


@pytest.mark.parametrize("options", [{"timeout": 0}, {"timeout": -1}, {"retries": -1}, {"compress_over": 0}])
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        mq.Producer(MemoryBroker(), **options)


@pytest.mark.parametrize("wrong", ["text", None, b"bytes", STORED])
def test_what_is_no_message_cannot_be_sent(wrong: Any) -> None:
    broker, producer = make()
    sends: list[Callable[[Any], Any]] = [
        producer.send,
        producer.send_async,
        producer.send_oneway,
        lambda each: producer.send_batch([MESSAGE, each]),
        lambda each: producer.send_batch([each]),
    ]
    for send in sends:
        with pytest.raises(TypeError, match="Message"):
            send(wrong)
    assert broker.stored() == []


def test_queue_and_shard_key_exclude_each_other() -> None:
    _, producer = make()
    with pytest.raises(ValueError, match="give one of them"):
        producer.send(MESSAGE, queue=mq.MessageQueue("orders", "mq", 0), shard_key="k")


def test_a_queue_of_another_topic_is_refused() -> None:
    broker, producer = make()
    with pytest.raises(ValueError, match="is no queue of"):
        producer.send(MESSAGE, queue=mq.MessageQueue("others", "mq", 0))
    wrong: Any = 0
    with pytest.raises(TypeError, match="MessageQueue"):
        producer.send(MESSAGE, queue=wrong)
    assert producer.send(MESSAGE, queue=broker.topic("orders").queues[3]).queue.queue_id == 3


def test_a_selector_gets_queues_message_and_key_and_must_choose_among_them() -> None:
    seen: list[Any] = []

    def choose(queues: Sequence[mq.MessageQueue], message: mq.Message, key: Any) -> Any:
        seen.append((len(queues), message, key))
        return queues[3] if key != "wrong" else "nothing of the kind"

    _, producer = make(selector=choose)
    assert producer.send(MESSAGE, shard_key="k").queue.queue_id == 3
    assert producer.send_batch([MESSAGE]).queue.queue_id == 3
    assert seen == [(4, MESSAGE, "k"), (4, MESSAGE, None)]
    with pytest.raises(ValueError, match="none of the queues"):
        producer.send(MESSAGE, shard_key="wrong")


def test_selectors_that_come_with_mq() -> None:
    queues = [mq.MessageQueue("orders", "mq", queue_id) for queue_id in range(7)]
    for key in ("a", b"a", "größe", 0, -5, 1 << 80):
        assert by_hash(queues, MESSAGE, key) == by_hash(queues, MESSAGE, key)
    assert by_hash(queues, MESSAGE, "17") == by_hash(queues, MESSAGE, b"17") == by_hash(queues, MESSAGE, 17)
    # XXH64 with seed 0 of nothing: a key must go to the same queue in every release.
    assert by_hash(queues, MESSAGE, "").queue_id == 0xEF46DB3751D8E999 % 7
    with pytest.raises(TypeError, match="shard_key"):
        by_hash(queues, MESSAGE, None)
    assert {selector.at_random(queues, MESSAGE, None) for _ in range(300)} == set(queues)


def test_shard_keys_spread_over_the_queues() -> None:
    queues = [mq.MessageQueue("orders", "mq", queue_id) for queue_id in range(8)]
    counts = Counter(by_hash(queues, MESSAGE, f"path/{number}").queue_id for number in range(8000))
    assert min(counts.values()) > 800
    assert max(counts.values()) < 1200


def test_threads_go_through_the_queues_together() -> None:
    broker, producer = make()
    used: list[int] = []

    def work() -> None:
        used.extend(producer.send(MESSAGE).queue.queue_id for _ in range(12))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts = Counter(used)
    assert counts.total() == len(broker.stored()) == 96
    # Each of those that come first may begin a turn of its own, and all but one of these are given up.
    assert max(counts.values()) - min(counts.values()) <= 8


def test_with_fault_avoidance_each_thread_goes_through_the_queues_on_its_own() -> None:
    broker, producer = make(fault_avoidance=True)
    used: dict[int, list[int]] = {}

    def work(name: int) -> None:
        used[name] = [producer.send(MESSAGE).queue.queue_id for _ in range(12)]

    threads = [threading.Thread(target=work, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for queue_ids in used.values():
        assert sorted(queue_ids[:4]) == [0, 1, 2, 3]
        assert queue_ids == queue_ids[:4] * 3
    assert len(broker.stored()) == 96


def test_a_turn_begins_anywhere() -> None:
    starts = {make()[1].send(MESSAGE).queue.queue_id for _ in range(200)}
    assert starts == {0, 1, 2, 3}


def test_bodies_are_compressed_from_the_threshold_on() -> None:
    for size, is_compressed in ((4095, False), (4096, True)):
        broker, producer = make()
        producer.send(mq.Message("orders", b"x" * size))
        assert (broker.stored()[0].sys_flag == 0x301) == is_compressed
    broker, producer = make(compress_over=10)
    producer.send(mq.Message("orders", b"x" * 50))
    producer.send_oneway(mq.Message("orders", b"x" * 50))
    assert {message.sys_flag for message in broker.stored()} == {0x301}


@pytest.mark.parametrize(("kind", "flags"), [("zlib", 0x301), ("lz4", 0x101), ("zstd", 0x201)])
def test_the_compressor_is_an_option(kind: Any, flags: int) -> None:
    broker, producer = make(compression=kind)
    producer.send(mq.Message("orders", b"x" * 9000))
    (message,) = broker.stored()
    assert (message.sys_flag, message.body) == (flags, b"x" * 9000)


def test_a_batch_is_not_compressed() -> None:
    broker, producer = make()
    producer.send_batch([mq.Message("orders", b"x" * 9000)] * 2)
    assert [(message.sys_flag, len(message.stored_body)) for message in broker.stored()] == [(0, 9000)] * 2


def test_a_batch_is_tried_again_and_goes_to_one_queue() -> None:
    broker, producer = make(lost(), refused(2))
    result = producer.send_batch([MESSAGE] * 3)
    assert broker.batches == [3, 3, 3]
    assert len({message.queue_id for message in broker.stored()}) == 1
    assert len(result.msg_ids) == 3


def test_a_batch_to_a_retry_topic_is_refused() -> None:
    _, producer = make()
    with pytest.raises(mq.MessageInvalid, match="retry topic"):
        producer.send_batch([mq.Message("%RETRY%group", b"x")])


def test_a_batch_may_come_from_any_iterable() -> None:
    broker, producer = make()
    producer.send_batch(mq.Message("orders", b"%d" % number) for number in range(5))
    assert len(broker.stored()) == 5


def test_hooks_see_every_attempt_and_its_outcome() -> None:
    failure = lost()
    _, producer = make(failure)
    seen: list[Any] = []
    producer.before_send.append(lambda message, queue: seen.append(("before", message, queue.topic)))
    producer.after_send.append(lambda message, _queue, result, error: seen.append((message, result, error)))
    result = producer.send(MESSAGE)
    assert seen == [
        ("before", MESSAGE, "orders"),
        (MESSAGE, None, failure),
        ("before", MESSAGE, "orders"),
        (MESSAGE, result, None),
    ]


def test_hooks_see_what_goes_out_in_any_other_way() -> None:
    broker, producer = make()
    seen: list[mq.Message] = []
    producer.after_send.append(lambda message, _queue, _result, _error: seen.append(message))
    others = [mq.Message("orders", b"%d" % number) for number in range(4)]
    producer.send_batch(others[:2])
    producer.send_oneway(others[2])
    producer.send_async(others[3]).result(timeout=60)
    assert seen == others
    assert len(broker.stored()) == 4


def test_what_a_hook_raises_is_counted_and_goes_no_further() -> None:
    broker, producer = make()

    def broken(*_: Any) -> None:
        raise RuntimeError("a bug in a hook")

    producer.before_send.append(broken)
    producer.after_send.append(broken)
    assert producer.send(MESSAGE).queue_offset == 0
    assert producer.hook_errors == 2
    assert len(broker.stored()) == 1


def test_a_closed_producer_says_so() -> None:
    broker, producer = make()
    with producer:
        producer.send(MESSAGE)
    producer.close()
    for send in (
        producer.send,
        producer.send_async,
        producer.send_oneway,
        lambda each: producer.send_batch([each]),
    ):
        with pytest.raises(mq.BrokerClosed, match="this producer is closed"):
            send(MESSAGE)
    assert len(broker.stored()) == 1
    broker.topics()


def test_close_waits_for_what_send_async_took() -> None:
    broker, producer = make()
    broker.blocked.clear()
    futures = [producer.send_async(MESSAGE) for _ in range(50)]
    closing = threading.Thread(target=producer.close)
    closing.start()
    assert not any(future.done() for future in futures)
    broker.blocked.set()
    closing.join()
    assert all(future.done() for future in futures)
    assert len(broker.stored()) == 50


def test_what_waits_together_goes_out_in_batches_by_queue() -> None:
    broker, producer = make()
    broker.blocked.clear()
    futures = [producer.send_async(MESSAGE) for _ in range(200)]
    broker.blocked.set()
    results = [future.result(timeout=60) for future in futures]
    producer.close()
    assert sum(broker.batches) + len(broker.attempts) == 200
    assert len(broker.batches) + len(broker.attempts) <= 30
    by_id = {message.msg_id: message for message in broker.stored()}
    for result in results:
        message = by_id[result.msg_id]
        assert (message.queue_id, message.queue_offset) == (result.queue.queue_id, result.queue_offset)
        assert message.offset_msg_id == result.offset_msg_id


def test_messages_that_cannot_be_in_a_batch_keep_their_place_in_the_queue() -> None:
    broker, producer = make()
    queue = mq.MessageQueue("orders", "mq", 1)
    bodies = [b"%d" % number if number % 7 else b"%d " % number * 3000 for number in range(1, 100)]
    broker.blocked.clear()
    for number, body in enumerate(bodies):
        producer.send_async(mq.Message("orders", body, wait=number % 5 > 0), queue=queue)
    broker.blocked.set()
    producer.close()
    found = broker.topic("orders").queues[1].read(0, count_max=1000).messages
    assert [message.body for message in found] == bodies
    assert {message.sys_flag for message in found} == {0, 0x301}


def test_batches_of_send_async_stay_below_the_limit() -> None:
    broker = ScriptedBroker(message_size_max=10_000)
    broker.create_topic("orders", 1)
    with mq.Producer(broker, timeout=60.0) as producer:
        broker.blocked.clear()
        for number in range(60):
            producer.send_async(mq.Message("orders", b"%02d" % number * 500))
        broker.blocked.set()
    assert [message.body[:2] for message in broker.stored()] == [b"%02d" % number for number in range(60)]
    assert max(broker.batches) <= 9


def test_when_a_batch_of_send_async_fails_each_message_has_its_own_outcome() -> None:
    broker = ScriptedBroker()
    broker.create_topic("orders", 1)
    producer = mq.Producer(broker, timeout=60.0)
    broker.blocked.clear()
    first = producer.send_async(MESSAGE)
    while not first.running():  # so that those to come are taken together, after the first
        pass
    full = mq.StoreFull("full", path="x")
    broker.script = [None, full, full, None, full]
    futures = [producer.send_async(MESSAGE) for _ in range(3)]
    broker.blocked.set()
    producer.close()
    assert [future.exception() for future in (first, *futures)] == [None, full, None, full]
    assert broker.batches == [3]


def test_a_batch_that_may_be_stored_is_not_sent_again() -> None:
    broker = ScriptedBroker()
    broker.create_topic("orders", 1)
    producer = mq.Producer(broker, timeout=60.0)
    broker.blocked.clear()
    first = producer.send_async(MESSAGE)
    while not first.running():
        pass
    failure = lost("ID" * 16)
    broker.script = [None, failure]
    futures = [producer.send_async(MESSAGE) for _ in range(3)]
    broker.blocked.set()
    producer.close()
    assert [future.exception() for future in futures] == [failure] * 3
    assert (len(broker.attempts), broker.batches) == (1, [3])


@pytest.mark.parametrize(
    ("failure", "attempts"), [(lost(), 3), (mq.RemotingError("gone"), 3), (refused(2), 1)]
)
def test_send_async_tries_again_only_where_there_was_no_answer(failure: Exception, attempts: int) -> None:
    broker, producer = make(*[failure] * 9)
    assert producer.send_async(MESSAGE).exception(timeout=60) is failure
    assert len(broker.attempts) == attempts
    assert len({queue_id for queue_id, _ in broker.attempts}) == 1
    producer.close()


def test_send_async_waits_for_room_and_gives_up_in_time() -> None:
    broker, producer = make()
    broker.blocked.clear()
    futures = [producer.send_async(MESSAGE) for _ in range(ASYNC_COUNT_MAX)]
    with pytest.raises(mq.RequestTimeout, match="1,024 messages"):
        producer.send_async(MESSAGE, timeout=0.01)
    waited = threading.Thread(target=lambda: futures.append(producer.send_async(MESSAGE, timeout=60)))
    waited.start()
    broker.blocked.set()
    waited.join()
    producer.close()
    assert len(futures) == len(broker.stored()) == ASYNC_COUNT_MAX + 1


def test_bytes_bound_the_send_buffer_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mq.client.producer.ASYNC_SIZE_MAX", 1000)
    broker, producer = make()
    broker.blocked.clear()
    big = mq.Message("orders", b"x" * 600)
    producer.send_async(big)
    with pytest.raises(mq.RequestTimeout):
        producer.send_async(big, timeout=0.01)
    producer.send_async(mq.Message("orders", b"x" * 400))
    broker.blocked.set()
    producer.close()
    # One alone may be over the bound, else it could never be sent.
    with mq.Producer(broker, timeout=60.0) as another:
        another.send_async(mq.Message("orders", b"x" * 3000)).result(timeout=60)
    assert len(broker.stored()) == 3


def test_a_queue_that_goes_away_meanwhile_is_replaced_by_another() -> None:
    broker, producer = make()
    broker.blocked.clear()
    first = producer.send_async(MESSAGE)
    while not first.running():
        pass
    futures = [producer.send_async(MESSAGE) for _ in range(40)]
    bound = producer.send_async(MESSAGE, queue=mq.MessageQueue("orders", "mq", 3))
    broker.create_topic("orders", 1)
    broker.blocked.set()
    assert {future.result(timeout=60).queue.queue_id for future in [first, *futures]} == {0}
    assert isinstance(bound.exception(timeout=60), ValueError)
    producer.close()
    assert len(broker.stored()) == 41


def test_a_topic_that_shrinks_under_a_send_takes_the_message_elsewhere() -> None:
    class Shrinking(ScriptedBroker):
        def append(self, queue: mq.MessageQueue, *rest: Any, **options: Any) -> mq.SendResult:
            if queue.queue_id:
                self.create_topic("orders", queue.queue_id)
            return super().append(queue, *rest, **options)

    for _ in range(20):
        broker = Shrinking()
        broker.create_topic("orders", 4)
        assert mq.Producer(broker, retries=0).send(MESSAGE).queue.queue_id == 0


def test_the_send_buffer_outlives_any_error() -> None:
    broker = ScriptedBroker(ZeroDivisionError(), SystemExit())
    broker.create_topic("orders", 1)
    with mq.Producer(broker, timeout=60.0) as producer:
        for kind in (ZeroDivisionError, SystemExit):
            assert isinstance(producer.send_async(MESSAGE).exception(timeout=60), kind)
        assert producer.send_async(MESSAGE).result(timeout=60).queue_offset == 0


def test_a_message_that_waited_too_long_is_not_sent() -> None:
    broker, producer = make()
    broker.blocked.clear()
    first = producer.send_async(MESSAGE)
    while not first.running():
        pass
    late = producer.send_async(MESSAGE, timeout=1e-9)
    broker.blocked.set()
    assert isinstance(late.exception(timeout=60), mq.RequestTimeout)
    assert first.result(timeout=60).status is mq.SendStatus.SEND_OK
    producer.close()
    assert len(broker.stored()) == 1


def test_a_cancelled_message_is_not_sent() -> None:
    broker, producer = make()
    broker.blocked.clear()
    first = producer.send_async(MESSAGE)
    while not first.running():
        pass
    second = producer.send_async(MESSAGE)
    assert second.cancel()
    assert not first.cancel()
    broker.blocked.set()
    producer.close()
    assert len(broker.stored()) == 1


def test_a_callback_may_send_and_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mq.client.producer.ASYNC_COUNT_MAX", 1)
    broker, producer = make()
    done = threading.Event()

    def more(_: object) -> None:
        producer.send_async(MESSAGE, timeout=60)  # there is no room, and no other thread could make any
        producer.close()
        done.set()

    producer.send_async(MESSAGE).add_done_callback(more)
    assert done.wait(60)
    producer.close()
    assert len(broker.stored()) == 2


def test_what_send_async_took_is_sent_before_the_interpreter_ends() -> None:
    script = """if True:
        import mq
        from tests.support.memory.broker import MemoryBroker

        class Loud(MemoryBroker):
            def append(self, queue, message, *rest):
                print(message.body.decode(), flush=True)
                return super().append(queue, message, *rest)

            def append_batch(self, queue, messages):
                print("\\n".join(each.body.decode() for each in messages), flush=True)
                return super().append_batch(queue, messages)

        producer = mq.Producer(Loud(default_queue_count=1), timeout=60)
        for number in range(500):
            producer.send_async(mq.Message("orders", b"%d" % number))
    """
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, check=True, text=True, timeout=60
    )
    assert done.stdout.split() == [str(number) for number in range(500)]
    assert done.stderr == ""


def test_a_pause_follows_rocketmqs_table() -> None:
    for latency, pause in (
        (0, 0),
        (49, 0),
        (50, 0),
        (549, 0),
        (550, 2_000),
        (1_799, 2_000),
        (1_800, 5_000),
        (3_000, 6_000),
        (5_000, 10_000),
        (14_999, 10_000),
        (15_000, 30_000),
        (1e9, 30_000),
    ):
        assert pause_after(latency) == pause


def test_a_pause_ends_by_waiting_alone() -> None:
    table = FaultTable()
    assert table.is_available("a", 0)
    table.record("a", 600, 1_000)
    assert not table.is_available("a", 2_999)
    table.record("a", 1, 1_500)
    assert not table.is_available("a", 2_999)
    assert table.is_available("a", 3_000)
    table.record("a", 1, 5_000, failed=True, reachable=False)
    assert not table.is_available("a", 14_999)
    assert not table.is_reachable("a")
    table.record("a", 1, 15_000)
    assert table.is_reachable("a")
    assert table.is_available("a", 15_000)


def test_without_faults_another_broker_than_the_last_is_preferred() -> None:
    queues = [mq.MessageQueue("t", broker, queue_id) for broker in "ab" for queue_id in range(2)]
    turns = iter(queues * 10)
    assert next_but(turns.__next__, 4, None, None, 0) == queues[0]
    assert next_but(turns.__next__, 4, "a", None, 0) == queues[2]
    assert next_but(turns.__next__, 4, "b", None, 0) == queues[0]
    only = iter(queues[:2] * 10)
    assert next_but(only.__next__, 2, "a", None, 0) == queues[0]


def test_with_faults_the_available_come_first_then_the_reachable_then_any() -> None:
    queues = [mq.MessageQueue("t", broker, 0) for broker in "abc"]
    faults = FaultTable()

    def choose(last: str | None) -> str:
        turns = iter(queues * 10)
        return next_but(turns.__next__, 3, last, faults, 100).broker_name

    faults.record("a", 1, 0, failed=True)
    assert choose(None) == "b"
    assert choose("b") == "c"
    faults.record("b", 1, 0, failed=True, reachable=False)
    faults.record("c", 1, 0, failed=True)
    assert choose(None) == "a"
    assert choose("a") == "c"
    faults.record("a", 1, 0, failed=True, reachable=False)
    faults.record("c", 1, 0, failed=True, reachable=False)
    assert choose(None) == "a"


def test_fault_avoidance_keeps_account_of_a_broker() -> None:
    broker, producer = make(lost(), refused(2), fault_avoidance=True)
    assert producer.send(MESSAGE).status is mq.SendStatus.SEND_OK
    assert len(broker.attempts) == 3
    assert producer.send(MESSAGE).status is mq.SendStatus.SEND_OK
    assert len(broker.stored()) == 2


def test_probes_of_a_broker_begin_once_and_end_with_an_answer() -> None:
    table = FaultTable()
    assert not table.begin_probes("a")
    table.record("a", 1, 0, failed=True, reachable=False)
    assert table.begin_probes("a")
    assert not table.begin_probes("a")
    table.end_probes("a")
    assert table.is_reachable("a")
    assert not table.is_available("a", 9_999)
    table.record("a", 1, 0, failed=True, reachable=False)
    assert table.begin_probes("a")


def test_a_broker_that_always_answers_is_reachable_at_once() -> None:
    """That of a directory is not probed."""
    broker, producer = make(lost(), refused(2), fault_avoidance=True, fault_detector=True)
    for _ in range(2):
        assert producer.send(MESSAGE).status is mq.SendStatus.SEND_OK
    assert len(broker.attempts) == 4


def test_a_forked_child_cannot_use_its_parents_send_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    _, producer = make()
    producer.send_async(MESSAGE).result(timeout=60)
    with monkeypatch.context() as patched:
        patched.setattr("mq.client.send_buffer.os.getpid", lambda: -1)
        with pytest.raises(mq.ForkedBroker):
            producer.send_async(MESSAGE)
    producer.close()


async def _async_hook(*_: Any) -> None: ...


def _generator_hook(*_: Any) -> Iterator[int]:
    yield 1


@pytest.mark.parametrize("hook", [_async_hook, _generator_hook, partial(_async_hook, 1), "not a function"])
def test_a_hook_of_which_nothing_would_run_is_refused(hook: Any) -> None:
    _, producer = make()
    for name, hooks in (("before_send", producer.before_send), ("after_send", producer.after_send)):
        ways: list[Callable[[], object]] = [
            partial(hooks.append, hook),
            partial(hooks.insert, 0, hook),
            partial(hooks.extend, [print, hook]),
            partial(hooks.__setitem__, slice(None), [hook]),
            partial(hooks.__iadd__, [hook]),
        ]
        for way in ways:
            with pytest.raises(TypeError, match=f"a hook of {name} is"):
                way()
        assert hooks == []
        hooks.append(print)
        with pytest.raises(TypeError, match=f"a hook of {name} is"):
            hooks[0] = hook
        assert hooks == [print]


def test_a_hook_that_hides_an_async_function_is_counted_as_failed() -> None:
    broker, producer = make()

    def hiding_async(*arguments: Any) -> Any:
        return _async_hook(*arguments)

    def hiding_generator(*arguments: Any) -> Any:
        return _generator_hook(*arguments)

    producer.before_send.append(hiding_async)
    producer.after_send.append(hiding_generator)
    producer.send(MESSAGE)
    assert producer.hook_errors == 2
    assert len(broker.stored()) == 1


def test_hooks_are_appended_and_not_put_in_the_place_of_others() -> None:
    _, producer = make()
    with pytest.raises(AttributeError):
        producer.before_send = []  # type: ignore[misc]  # what it is about
    with pytest.raises(AttributeError):
        producer.after_send = []  # type: ignore[misc]  # what it is about
