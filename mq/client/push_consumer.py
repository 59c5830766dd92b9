"""The push consumer: calls listeners with the messages of the topics it subscribes to.

It shares the queues of a topic with the other members of its group (clustering), or has them all to itself
(broadcasting). Every message is delivered at least once: again after a failure, and again where a process
died before it could commit. Members that come and go in good order make nothing come twice.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterable
from functools import partial
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from mq.api.beginning import Beginning
from mq.api.broker import Broker
from mq.api.group import BroadcastOffsets, Membership, Model, Subscription
from mq.api.results import MessageQueue
from mq.client.engine.claimed_queues import AssignmentListener, ClaimedQueues
from mq.client.engine.consume_loop import ConsumeLoop
from mq.client.engine.delivery import Delivery, Listener, RetryDelivery
from mq.client.engine.options import PushOptions, begin_from, check_int
from mq.client.engine.queue_assignment import AnyStrategy
from mq.client.engine.send_back import SendBack
from mq.client.engine.subscriptions import check_agreement, subscription_of
from mq.client.identity import new_client_id
from mq.client.listener import check_listener
from mq.errors import BrokerClosed
from mq.filter.selection import Selection
from mq.names import RETRY_PREFIX
from mq.uninterrupted import handed_over, uninterrupted

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["PushConsumer"]

logger = logging.getLogger("mq.consumer")

CLOSE_SECONDS = 30.0
SIGNAL_SECONDS = 1.0  # until a signal is seen at the latest

Each = TypeVar("Each", bound=Listener)


class PushConsumer:
    """Consumes for a group; listeners run in threads of its own, up to `threads` at a time.

    `model` is "clustering" or "broadcasting", `consume_from` "first", "last", or a time in ms: where to begin
    with a topic of which the group has no offset. With `ordered` a queue has one listener at a time,
    in all processes together, and what fails blocks its queue for `suspend_ms`. A message that fails comes
    again up to max_reconsume_times, then it goes to the group's dead letters; -1 is RocketMQ's default: 16,
    in order without end. A listener that takes longer than consume_timeout (s) loses its messages to the
    retry topic, but not in order or broadcasting; it is not interrupted.

    `allocate` shares out the queues: see mq.client.engine.queue_assignment. `assignment_listener(topic,
    queues, mine)` is told of what this consumer gets. At most pull_threshold_for_queue messages and
    ..size_for_queue bytes of a queue are held here, and none that is consume_message_span offsets or more
    from the first (this does not go for ordered ones); thresholds for_topic are shared by the queues held.

    Only for broadcasting: `offsets_dir` is where offsets are kept, the store's own directory by default.
    """

    def __init__(
        self,
        broker: Broker,
        group: str,
        *,
        model: Model = "clustering",
        consume_from: Beginning | int = "first",
        ordered: bool = False,
        threads: int = 20,
        pull_count: int = 32,
        max_reconsume_times: int = 16,
        consume_timeout: float = 900.0,
        allocate: AnyStrategy = "averagely",
        client_id: str | None = None,
        suspend_ms: int = 1000,
        pull_threshold_for_queue: int = 1000,
        pull_threshold_for_topic: int | None = None,
        pull_threshold_size_for_queue: int = 100 << 20,
        pull_threshold_size_for_topic: int | None = None,
        consume_message_span: int = 2000,
        assignment_listener: AssignmentListener | None = None,
        offsets_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        self._options = PushOptions(
            group=group,
            model=model,
            consume_from=begin_from(consume_from),
            ordered=ordered,
            threads=threads,
            pull_count=pull_count,
            max_reconsume_times=max_reconsume_times,
            consume_timeout=consume_timeout,
            allocate=allocate,
            client_id=client_id,
            suspend_ms=suspend_ms,
            pull_threshold_for_queue=pull_threshold_for_queue,
            pull_threshold_for_topic=pull_threshold_for_topic,
            pull_threshold_size_for_queue=pull_threshold_size_for_queue,
            pull_threshold_size_for_topic=pull_threshold_size_for_topic,
            consume_message_span=consume_message_span,
            assignment_listener=assignment_listener,
            offsets_dir=offsets_dir,
        )
        self.group: Final = group
        self._broker = broker
        # Guards what follows. Never taken in the main thread: a signal handler may call any method.
        self._changing = threading.Lock()
        self._deliveries: dict[str, Delivery] = {}
        self._subscriptions: dict[str, Subscription] = {}
        self._membership: Membership | None = None
        self._local: BroadcastOffsets | None = None
        self._loop: ConsumeLoop | None = None
        self._is_suspended = False
        self._is_closed = False
        self._pid = os.getpid()

    @property
    def client_id(self) -> str | None:
        """The name of this consumer in its group; None before it is started, unless it was given one."""
        return self._membership.client_id if self._membership is not None else self._options.client_id

    @overload
    def subscribe(
        self, topic: str, expression: str = "*", *, sql: str | None = None, batch_size: int | None = None
    ) -> Callable[[Each], Each]: ...

    @overload
    def subscribe(
        self,
        topic: str,
        expression: str = "*",
        *,
        sql: str | None = None,
        batch_size: int | None = None,
        listener: Listener,
    ) -> None: ...

    def subscribe(
        self,
        topic: str,
        expression: str = "*",
        *,
        sql: str | None = None,
        batch_size: int | None = None,
        listener: Listener | None = None,
    ) -> Any:
        """Have a listener called with the messages of a topic that an expression selects: tags ("paid ||
        refunded", "*" for all), or `sql`, a condition on properties.

        The listener gets one message, or with `batch_size` a list of up to that many of one queue. Without
        one this is a decorator. Subscribing again replaces what was subscribed. Members of a group
        subscribe to the same: raises SubscriptionConflict where live ones do not; FilterSyntaxError;
        TypeError for an async function, which mq.aio.Consumer.run takes, or a generator function.
        """
        if batch_size is not None:
            check_int("batch_size", batch_size, 1, 1024)
        wanted, selection = subscription_of(topic, expression, sql)
        if listener is None:

            def decorate(decorated: Each) -> Each:
                self._subscribe(wanted, selection, decorated, batch_size)
                return decorated

            return decorate
        self._subscribe(wanted, selection, listener, batch_size)
        return None

    def unsubscribe(self, topic: str) -> None:
        """Have no more messages of a topic; its queues are given up once their listeners have ended."""
        uninterrupted(partial(self._unsubscribe, topic))

    def start(self) -> None:
        """Join the group and begin to consume. Raises SubscriptionConflict, GroupInvalid, and what the
        broker does."""
        uninterrupted(self._start, lambda _: self.close())

    def _start(self) -> None:
        with self._changing:
            self._check_usable()
            if self._loop is not None:
                raise RuntimeError(f"this consumer of {self.group} is started already")
            if not self._subscriptions:
                raise ValueError("nothing is subscribed to: call subscribe(topic) first")
            options = self._options
            membership = self._membership = self._join(options)
            if not options.is_broadcasting:
                retry = RETRY_PREFIX + self.group
                self._deliveries[retry] = RetryDelivery(retry, self._deliveries, options.ordered)
            claimed = ClaimedQueues(
                self._broker,
                self.group,
                membership.client_id,
                self._deliveries,
                strategy=options.allocate,
                listener=options.assignment_listener,
                local=self._local,
            )
            send_back = SendBack(
                self.group,
                max_reconsume_times=options.times_max,
                suspend_ms=options.suspend_ms,
                is_broadcasting=options.is_broadcasting,
            )
            self._loop = ConsumeLoop(options, self._broker.waiter(), membership, claimed, send_back)
            self._loop.suspend(self._is_suspended)
            self._loop.start()
            # Threads that the interpreter would not wait for: it closes what nobody closed.
            atexit.register(self.close)
            self._loop.when_closed(lambda: atexit.unregister(self.close))

    def _join(self, options: PushOptions) -> Membership:
        local, groups = None, self._broker.consumer_groups
        if options.is_broadcasting:
            local = groups.broadcast_offsets(self.group, options.client_id, options.offsets_path)
        try:
            membership = groups.join(
                self.group,
                client_id=local.client_id if local else options.client_id or new_client_id(),
                model=options.model,
                consume_type="push",
                ordered=options.ordered,
                subscriptions=sorted(self._subscriptions.values()),
                consume_from=options.consume_from,
            )
            try:
                self._begin(local, self._subscriptions)
            except BaseException:
                membership.leave()
                raise
        except BaseException:
            if local is not None:
                local.close()
            raise
        self._local = local
        return membership

    def _begin(self, local: BroadcastOffsets | None, topics: Iterable[str]) -> None:
        """Set where a broadcasting consumer begins with topics that it has no offset of. On disk: it is not
        to begin anew where it dies soon."""
        if local is not None:
            for topic in topics:
                local.begin(topic, self._options.consume_from)
            local.save()

    def suspend(self) -> None:
        """Call no listener from now on, until resume(); those that run go on. The queues stay this
        consumer's."""
        uninterrupted(partial(self._set_suspended, True))

    def resume(self) -> None:
        """Go on after suspend()."""
        uninterrupted(partial(self._set_suspended, False))

    @handed_over
    def close(self, timeout: float | None = CLOSE_SECONDS) -> None:
        """Wait for the listeners that run, commit, and leave the group. Twice is fine.

        After `timeout` seconds it leaves without them: what they have is delivered to others, and the log
        says which they are. Called by a listener it returns at once; the rest happens after that listener. An
        interrupt ends the wait, and not the closing.
        """
        self._close(timeout)

    def _close(self, timeout: float | None) -> None:
        if os.getpid() != self._pid:
            return
        with self._changing:
            self._is_closed = True
            loop = self._loop
        if loop is None or loop.closed.is_set():
            return
        running = loop.close(timeout)
        if running:
            logger.error(
                "consumer of group %s is closed after %g s without waiting longer for %s",
                *(self.group, timeout, "; ".join(running)),
            )

    def run(self) -> None:
        """Start, if that is not done yet, and block until SIGINT or SIGTERM, or close(); then close.

        Signals are taken care of in the main thread only. Their handlers are put back before listeners are
        waited for: a second signal does what it always did.
        """
        before: dict[signal.Signals, Any] = {}
        try:
            try:
                self._run(before)
            finally:
                _set_handlers(before)
                if self._loop is not None:
                    self.close()
        except BaseException:
            _set_handlers(before)  # An interrupt may have come where they were put back.
            raise

    def _run(self, before: dict[signal.Signals, Any]) -> None:
        """Until a signal, or close(). `before` gets the handlers to put back."""
        open_lock = threading.Lock()
        open_lock.acquire()

        def open_gate(_number: int = 0, _frame: FrameType | None = None) -> None:
            if open_lock.locked():
                open_lock.release()

        # First of all: a signal may come as soon as the first message is handled.
        if threading.current_thread() is threading.main_thread():
            for signaled in (signal.SIGINT, signal.SIGTERM):
                before[signaled] = signal.getsignal(signaled)
                signal.signal(signaled, open_gate)
        if self._loop is None:
            self.start()
        assert self._loop is not None
        self._loop.when_closed(open_gate)
        # In turns: a signal that comes just before a wait does not end it, and its handler runs after it.
        while not open_lock.acquire(timeout=SIGNAL_SECONDS):
            pass

    def assignment(self) -> set[MessageQueue]:
        """The queues that are this consumer's now; those that it is giving up are not among them."""
        return self._loop.queues() if self._loop is not None else set()

    def __enter__(self) -> Self:
        return self

    @handed_over
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(CLOSE_SECONDS)

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "started" if self._loop else "not started"
        return f"PushConsumer({self._broker!r}, {self.group!r}, {state})"

    def _subscribe(
        self, wanted: Subscription, selection: Selection, listener: Listener, batch_size: int | None
    ) -> None:
        check_listener(listener, awaits=False)
        delivery = Delivery(wanted.topic, selection, listener, batch_size, self._options.ordered)
        uninterrupted(partial(self._add, wanted, delivery))

    def _add(self, wanted: Subscription, delivery: Delivery) -> None:
        with self._changing:
            self._check_usable()
            subscriptions = {**self._subscriptions, wanted.topic: wanted}
            if self._membership is not None:
                self._membership.subscribe(sorted(subscriptions.values()))
            else:
                check_agreement(self._broker, self.group, wanted)
            self._subscriptions = subscriptions
            self._begin(self._local, [wanted.topic])  # First: the queues are claimed as soon as it is there.
            self._deliveries[wanted.topic] = delivery
        if self._loop is not None:
            self._loop.look_again()

    def _unsubscribe(self, topic: str) -> None:
        with self._changing:
            self._check_usable()
            kept = {name: each for name, each in self._subscriptions.items() if name != topic}
            if self._membership is not None:
                self._membership.subscribe(sorted(kept.values()))
            self._subscriptions = kept
            self._deliveries.pop(topic, None)
        if self._loop is not None:
            self._loop.look_again()

    def _set_suspended(self, is_suspended: bool) -> None:
        with self._changing:
            self._check_usable()
            self._is_suspended = is_suspended
            if self._loop is not None:
                self._loop.suspend(is_suspended)

    def _check_usable(self) -> None:
        if self._is_closed:
            raise BrokerClosed("this consumer is closed: make another")


def _set_handlers(handlers: dict[signal.Signals, Any]) -> None:
    for signaled, handler in handlers.items():
        signal.signal(signaled, handler)
