"""The producer: chooses a queue, sends, and tries again where that can help.

A call may take `timeout` seconds, all attempts and waits included. What the other end refused for good (a
message that is too large, a full disk, a topic that nobody may write) is raised at once. What another attempt
may get through (no answer, no connection, an answer that RocketMQ lists as passing) is tried `retries` times
more, under the same unique id, unless the caller chose the queue. A result whose status is other than
SEND_OK is no failure: the message is in the log, and sending it again would make a duplicate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from time import monotonic
from typing import TYPE_CHECKING, Any

from mq.api.broker import COMPRESS_OVER, Appenders, Broker, MessageQueue, Queue, SendResult
from mq.api.topic import may_be_gone
from mq.client.batch import BATCH_ENTRY_SIZE, check_batch
from mq.client.fault import FaultAvoidance, was_answered
from mq.client.hooks import Hooks
from mq.client.listener import close_unrun
from mq.client.publish_routes import Routes
from mq.client.selector import Selector
from mq.client.send_buffer import PendingSend, SendBuffer
from mq.client.sent_once import KeyedSend, SentOnce
from mq.compression import Compression, compressor
from mq.errors import BrokerClosed, MessageTooLarge, RemotingError, RequestTimeout, SendFailed
from mq.fastpath import Sender, in_c, time_guard
from mq.message import Message
from mq.names import check_group
from mq.uninterrupted import handed_over

if TYPE_CHECKING:
    from typing_extensions import Self

# RocketMQ's answers after which another attempt may succeed, None for no answer: SYSTEM_ERROR, SYSTEM_BUSY,
# SERVICE_NOT_AVAILABLE, NO_PERMISSION, TOPIC_NOT_EXIST, NO_BUYER_ID, NOT_IN_CURRENT_UNIT, GO_AWAY.
RETRIED_CODES = frozenset({None, 1, 2, 14, 16, 17, 204, 205, 1500})
ASYNC_COUNT_MAX = 1024
ASYNC_SIZE_MAX = 100 << 20

BeforeSend = Callable[[Message, MessageQueue], object]
Store = Callable[[MessageQueue, "str | None"], SendResult]  # with the unique id of an earlier attempt
AfterSend = Callable[[Message, MessageQueue, "SendResult | None", "Exception | None"], object]


class Producer(Sender):
    """Sends messages to a broker; any thread may use it.

    `before_send` and `after_send` are lists of plain functions to be called around every attempt; what they
    raise is swallowed, and counted in `hook_errors`. Close it, or use it in a with statement: what
    send_async has taken is sent before close() returns.
    """

    def __init__(
        self,
        broker: Broker,
        group: str = "DEFAULT_PRODUCER",
        *,
        timeout: float = 3.0,
        retries: int = 2,
        compress_over: int = COMPRESS_OVER,
        compression: Compression = "zlib",
        selector: Selector | None = None,
        fault_avoidance: bool = False,
        fault_detector: bool = False,
        dedup_window: float | None = None,
    ) -> None:
        check_group(group)
        if timeout <= 0:
            raise ValueError(f"timeout is {timeout} s, must be more than 0")
        if retries < 0:
            raise ValueError(f"retries is {retries}, must be 0 or more")
        if compress_over < 1:
            raise ValueError(f"compress_over is {compress_over} bytes, must be 1 or more")
        if fault_detector and not fault_avoidance:
            raise ValueError("fault_detector=True needs fault_avoidance=True, which uses what it detects")
        self.group = group
        self._before_send: list[BeforeSend] = Hooks("before_send")
        self._after_send: list[AfterSend] = Hooks("after_send")
        self.hook_errors = 0
        self._broker = broker
        self._append = Appenders(broker.appender)
        self._oneway = Appenders(broker.oneway_appender)
        self._once = SentOnce(broker, dedup_window)
        self._timeout = timeout
        self._retries = retries
        self._compress_over = compress_over
        self._compress = compressor(compression)
        self._faults = FaultAvoidance(broker, has_detector=fault_detector) if fault_avoidance else None
        self._routes = Routes(broker, selector, self._faults.table if self._faults else None)
        self._size_max = broker.message_size_max
        self._closed = False
        # Messages up to this size take the short way, as long as nothing unusual is asked for.
        self._short_max = min(compress_over - 1, self._size_max)
        self._start(self._before_send, self._after_send, self._short_max, timeout)
        if selector is not None or fault_avoidance:
            self._stop()
        self._buffer = SendBuffer(f"mq-producer-{group}", self._send_pending, ASYNC_COUNT_MAX, ASYNC_SIZE_MAX)

    @property
    def has_dedup_window(self) -> bool:
        """Whether messages with a key are stored once."""
        return self._once.has_window

    @property
    def before_send(self) -> list[BeforeSend]:
        """Functions (message, queue) that are called before each attempt; append yours, plain ones."""
        return self._before_send

    @property
    def after_send(self) -> list[AfterSend]:
        """Functions (message, queue, result or None, error or None) that are called after each attempt."""
        return self._after_send

    @in_c("producer_send")
    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | Queue | None = None,
        shard_key: str | bytes | int | None = None,
        timeout: float | None = None,
        dedup_key: str | None = None,
        unique_id: str | None = None,
    ) -> SendResult:
        """Store a message, and return where.

        Queues take turns, unless `queue` names one or `shard_key` stands for one; then there is a single
        attempt, and its error is raised as it is. Otherwise SendFailed tells of all attempts.

        With a dedup_key, the message's own or this one, or a unique id of your own, the message is stored
        unless one of its topic was within the last dedup_window seconds; then the result is that one's.
        """
        started = monotonic()
        self._check(message)
        with time_guard(self._timeout if timeout is None else timeout):
            first = None
            turns = self._turns
            if (
                turns is not None
                and queue is None
                and shard_key is None
                and dedup_key is unique_id is None
                and (message.plain or not self._once.has_window or message.dedup_key is None)
                and len(message.body) <= self._short_max
                and not self.before_send
                and not self.after_send
            ):
                topic = message.topic
                while first is None:
                    turn = turns.get(topic)
                    if turn is None:
                        turn = turns[topic] = self._routes.appenders(topic, self._broker.appender)
                    chosen, append = next(turn)
                    try:
                        result: SendResult | None = append(message, message.body, 0)
                        if result is not None:
                            return result
                        turns.pop(topic, None)  # some topic has changed
                    except (RemotingError, RequestTimeout, ValueError) as error:
                        first = chosen, error
            store = self._storing(message, dedup_key, unique_id, timeout)
            named = self._routes.named(message, queue, shard_key)
            if dedup_key is not None and named is None and unique_id is None:
                self._once.start(self._keyed_turns, self._routes, message.topic)
            return self._deliver(store, (message,), named, timeout, started, first)

    def _failed_once(
        self, message: Message, chosen: MessageQueue, error: Exception, started: float, key: str | None
    ) -> SendResult:
        """What becomes of a message whose first attempt failed, in the short way."""
        if not isinstance(error, (RemotingError, RequestTimeout, ValueError)):
            raise error
        with time_guard(started + self._timeout - monotonic()):
            store = self._storing(message, key)
            return self._deliver(store, (message,), None, None, started, (chosen, error))

    def send_batch(
        self,
        messages: Iterable[Message],
        *,
        queue: MessageQueue | Queue | None = None,
        shard_key: str | bytes | int | None = None,
    ) -> SendResult:
        """Store messages of one topic side by side in one queue: all of them, or none.

        Together they must stay below the broker's message_size_max. Bodies are not compressed.
        """
        started = monotonic()
        self._check_open()
        batch = list(messages)
        check_batch(batch, self._size_max, once=self._once.has_window)

        def store(to: MessageQueue, _unique_id: str | None) -> SendResult:
            return self._broker.append_batch(to, batch)

        with time_guard(self._timeout):
            named = self._routes.named(batch[0], queue, shard_key)
            return self._deliver(store, batch, named, None, started, None)

    def send_async(
        self,
        message: Message,
        *,
        queue: MessageQueue | Queue | None = None,
        shard_key: str | bytes | int | None = None,
        timeout: float | None = None,
        dedup_key: str | None = None,
        unique_id: str | None = None,
    ) -> Future[SendResult]:
        """Have a message sent by the producer's own thread; the future has the result, or the error.

        What one thread sends to one queue keeps its order. About 1,024 messages and 100 MiB at most are on
        their way at a time; with more, the call waits for room, up to the timeout (RequestTimeout). Only
        trouble with the connection is retried. What is wrong with the message itself is raised here.
        """
        self._check(message)
        timeout = self._timeout if timeout is None else timeout
        with time_guard(timeout):
            named = self._routes.named(message, queue, shard_key)
            chosen = named or self._routes.choose(message.topic)
        if dedup_key is unique_id is None:
            pending = PendingSend(message, chosen, named is not None, timeout)
        else:
            _ = self._once.window_ms  # Where there is none, the error is the call's, and not the future's.
            pending = KeyedSend(message, chosen, named is not None, timeout, dedup_key, unique_id)
        self._buffer.put(pending)
        return pending.future

    def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | Queue | None = None,
        shard_key: str | bytes | int | None = None,
    ) -> None:
        """Send without waiting for a flush, or for a cluster's answer (WAIT=false), in a single attempt."""
        self._check(message)
        with time_guard(self._timeout):
            chosen = self._routes.named(message, queue, shard_key) or self._routes.choose(message.topic)
            self._attempt(self._storing(message.without_wait(), via=self._oneway), (message,), chosen, None)

    @handed_over
    def close(self) -> None:
        """Wait until what send_async has taken is sent, and send nothing more. The broker stays open."""
        self._closed = True
        self._stop()
        self._buffer.close()
        if self._faults is not None:
            self._faults.close()

    def __enter__(self) -> Self:
        return self

    @handed_over
    def __exit__(self, *_exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Producer({self._broker!r}, {self.group!r}{', closed' if self._closed else ''})"

    def _deliver(
        self,
        store: Store,
        messages: Sequence[Message],
        named: MessageQueue | None,
        timeout: float | None,
        started: float,
        first: tuple[MessageQueue, RemotingError | RequestTimeout | ValueError] | None,
    ) -> SendResult:
        """Attempts until one succeeds, none is left, or the time is up; `first` is one that failed."""
        if named is not None:
            return self._attempt(store, messages, named, None)
        topic = messages[0].topic
        if timeout is None:
            timeout = self._timeout
        attempts: list[tuple[str, Exception]] = []
        last_broker = unique_id = version = None
        while True:
            if first is None:
                version = self._broker.route_version()
                chosen = self._routes.choose(topic, last_broker)
                try:
                    return self._attempt(store, messages, chosen, unique_id)
                except (RemotingError, RequestTimeout, ValueError) as error:
                    first = chosen, error
            chosen, failure = first
            first = None
            if isinstance(failure, ValueError):
                if may_be_gone(self._broker, chosen, failure, version):
                    continue
                raise failure
            if isinstance(failure, RemotingError) and failure.code not in RETRIED_CODES:
                raise failure
            last_broker = chosen.broker_name
            unique_id = failure.unique_id or unique_id
            attempts.append((last_broker, failure))
            spent = monotonic() - started
            if len(attempts) > self._retries:
                raise SendFailed(
                    f"{len(attempts)} attempts in {spent:.3f} s failed, the last one with: {failure}"
                    f" (brokers: {', '.join(broker for broker, _ in attempts)})",
                    attempts=tuple(attempts),
                ) from failure
            if spent > timeout:
                raise RequestTimeout(
                    f"not sent within {timeout:g} s: {len(attempts)} attempts failed,"
                    f" the last one with: {failure}",
                    address=getattr(failure, "address", None),
                ) from failure

    def _attempt(
        self, store: Store, messages: Sequence[Message], chosen: MessageQueue, unique_id: str | None
    ) -> SendResult:
        """One attempt, with its hooks, and its entry in the table of faults."""
        for before in self.before_send:
            for message in messages:
                self._call(before, message, chosen)
        started = monotonic()
        result = failure = None
        try:
            result = store(chosen, unique_id)
        except Exception as error:
            failure = error
            raise
        finally:
            if self._faults is not None:
                self._faults.note(chosen, started, failure)
            for after in self.after_send:
                for message in messages:
                    self._call(after, message, chosen, result, failure)
        return result

    def _call(self, hook: Callable[..., object], *arguments: Any) -> None:
        try:
            is_wrong = close_unrun(hook(*arguments))
        except Exception:  # noqa: BLE001 - what a hook does wrong must not keep a message from being sent
            is_wrong = True
        self.hook_errors += is_wrong

    def _check_open(self) -> None:
        if self._closed:
            raise BrokerClosed("this producer is closed: make another")

    def _check(self, message: Message) -> None:
        self._check_open()
        if not isinstance(message, Message):
            raise TypeError(f"a Message is sent, not {type(message).__name__}")
        if len(message.body) > self._size_max:
            raise MessageTooLarge(len(message.body), self._size_max)

    def _storing(
        self,
        message: Message,
        dedup_key: str | None = None,
        unique_id: str | None = None,
        timeout: float | None = None,
        via: Appenders | None = None,
    ) -> Store:
        """How to store this message: its body is compressed once, for all attempts."""
        body, sys_flag = message.body, 0
        if len(body) >= self._compress_over:
            body, sys_flag = self._compress(body)
        has_own_key = self._once.has_window and not message.plain and message.dedup_key is not None
        if dedup_key is not None or unique_id is not None or has_own_key:
            wait = self._timeout if timeout is None else timeout
            return self._once.storing(message, body, sys_flag, dedup_key, unique_id, wait)
        return lambda to, unique_id: (via or self._append)(to, message, body, sys_flag, unique_id)

    def _send_pending(self, sends: list[PendingSend]) -> None:
        """Send what send_async took. Messages to one queue go as one batch where they can: that costs one
        flush instead of many."""
        groups: dict[MessageQueue, list[PendingSend]] = {}
        sizes: dict[MessageQueue, int] = {}
        for pending in sends:
            message, queue = pending.message, pending.queue
            size = len(message.body) + len(message.encoded) + BATCH_ENTRY_SIZE
            is_plain = (
                message.plain and type(pending) is PendingSend and len(message.body) < self._compress_over
            )
            if not is_plain or sizes.get(queue, 0) + size > self._size_max:
                self._send_group(groups.pop(queue, []))
                sizes[queue] = 0
            if is_plain and not self.before_send and not self.after_send:
                groups.setdefault(queue, []).append(pending)
                sizes[queue] = sizes.get(queue, 0) + size
            else:
                self._send_one(pending)
        for group in groups.values():
            self._send_group(group)

    def _send_group(self, sends: list[PendingSend]) -> None:
        """Send the messages of one queue as a batch; if that fails, send them one by one."""
        now = monotonic()
        if len(sends) > 1 and all(pending.deadline > now for pending in sends):
            queue = sends[0].queue
            messages = [pending.message for pending in sends]
            try:
                with time_guard(min(pending.deadline for pending in sends) - now):
                    result = self._broker.append_batch(queue, messages)
            except Exception as error:  # noqa: BLE001 - each message gets its own, or this one, below
                if getattr(error, "unique_id", None) is not None:
                    # They may be stored all the same, and sending them again would make duplicates.
                    for pending in sends:
                        pending.future.set_exception(error)
                    return
            else:
                for pending, each in zip(sends, result.split(), strict=True):
                    pending.future.set_result(each)
                return
        for pending in sends:
            self._send_one(pending)

    def _send_one(self, pending: PendingSend) -> None:
        message = pending.message
        chosen = pending.queue
        unique_id = failure = version = None
        attempts = 0
        try:
            if isinstance(pending, KeyedSend):
                store = self._storing(message, pending.dedup_key, pending.unique_id, pending.timeout)
            else:
                store = self._storing(message)
            while True:
                if monotonic() > pending.deadline:
                    raise failure or RequestTimeout(
                        f"not sent to {chosen} within {pending.timeout:g} s: other sends came first"
                    )
                try:
                    with time_guard(pending.deadline - monotonic()):
                        result = self._attempt(store, (message,), chosen, unique_id)
                    break
                except (RemotingError, RequestTimeout) as error:
                    failure = error
                    unique_id = error.unique_id or unique_id
                    attempts += 1
                    if attempts > self._retries or was_answered(error):
                        raise
                except ValueError as error:
                    if pending.is_bound or not may_be_gone(self._broker, chosen, error, version):
                        raise
                    version = self._broker.route_version()
                    chosen = self._routes.choose(message.topic)
        except BaseException as error:  # noqa: BLE001 - the thread goes on, and the caller learns of it
            pending.future.set_exception(error)
        else:
            pending.future.set_result(result)
