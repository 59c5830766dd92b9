"""Background pulls from one queue for its owner: the broker holds a request until there is a message.

A call never waits for the network. It takes the buffered answer and sends the next request at once, so one
request is always pending and at most one answer is buffered. After a seek, the answer for the old offset is
dropped.

If a broker does not know the member yet, a heartbeat is sent and the pull repeated. Any other error is raised
by the next call, and the call after that sends a new request.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic
from typing import Protocol

from mq.api.group import Subscription
from mq.api.results import MessageQueue, PullResult, PullStatus
from mq.errors import MQError
from mq.remoting.client.broker_errors import NoSuchTopic
from mq.remoting.client.brokers import Brokers
from mq.remoting.client.connections.answers import framed
from mq.remoting.client.namespace import Namespace
from mq.remoting.client.pulling import HOLD_SECONDS, pull_request, pulled
from mq.remoting.codec.bodies.route import MASTER_ID
from mq.remoting.codec.frame import Frame
from mq.remoting.codec.response_codes import ResponseCode

__all__ = ["ClaimPuller", "PullParameters"]

ANSWER_SECONDS = (
    30.0  # longer than a broker holds a pull, including the interval at which it checks held pulls
)
BACKOFF_SECONDS = (
    1.0  # pause after an error that a heartbeat repairs, or after an empty answer that was not held
)
NOT_KNOWN = frozenset({ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST})


class PullParameters(Protocol):
    """The parameters of a claim's pulls, read for each request."""

    def committed_offset(self) -> int | None:
        """The offset that the broker commits with the pull; None for no commit."""
        ...

    def own_subscription(self) -> Subscription | None:
        """The subscription to filter by; None: that of the heartbeat."""
        ...

    def sub_version(self) -> int: ...

    def on_unknown_member(self) -> None:
        """Called if the broker has no heartbeat with this subscription."""
        ...

    def on_missing_topic(self) -> None:
        """Called if the broker does not have the topic."""
        ...


class ClaimPuller:
    """See mq.api.queues.Puller. `group` as on the wire; `arrived` is called by the loop."""

    def __init__(
        self,
        brokers: Brokers,
        group: str,
        queue: MessageQueue,
        namespace: Namespace,
        parameters: PullParameters,
        arrived: Callable[[], object],
    ) -> None:
        self._brokers = brokers
        self._group = group
        self._queue = queue
        self._wire_queue = namespace.wire_queue(queue)
        self._namespace = namespace
        self._parameters = parameters
        self._arrived = arrived
        self._lock = threading.Lock()  # guards what follows
        self._asked = -1  # the offset of the pending request
        self._round = 0  # the number of the current request; answers to earlier ones are dropped
        self._result: PullResult | None = None
        self._result_of = -1
        self._failure: MQError | None = None
        self._broker_id = MASTER_ID
        self._min_offset = self._max_offset = 0
        self._is_closed = False

    def __call__(
        self, offset: int, count_max: int, byte_max: int, tag_hashes: frozenset[int] | None, wait: float, /
    ) -> PullResult:
        """See Puller. Returns the buffered answer or an empty result; the caller waits with a Waiter."""
        with self._lock:
            failure, self._failure = self._failure, None
            if failure is not None:
                raise failure
            result, self._result = self._result, None
            if result is not None and self._result_of != offset:
                result = None
            if result is not None:
                offset = result.next_offset
                self._min_offset, self._max_offset = result.min_offset, result.max_offset
        if not (result is not None and result.status is PullStatus.OFFSET_ILLEGAL):
            self._ask(offset, count_max, byte_max)
        if result is not None:
            return result
        return PullResult(PullStatus.NO_NEW_MESSAGE, [], offset, self._min_offset, self._max_offset)

    @property
    def is_moved(self) -> bool:
        """Whether an answer waits that says that the offset was reset, or is no offset of the queue."""
        result = self._result
        return result is not None and result.status is PullStatus.OFFSET_ILLEGAL

    def close(self) -> None:
        """Stop pulling; the answer to the pending request is dropped."""
        with self._lock:
            self._is_closed = True
            self._round += 1
            self._result = None

    def _ask(self, offset: int, count_max: int, byte_max: int) -> None:
        """Make sure that a request from this offset on is pending."""
        this, parameters = -1, self._parameters
        try:
            with self._lock:
                if self._is_closed or self._asked == offset:
                    return
                this = self._round = self._round + 1  # Known before there is a request to drop.
                self._asked = offset
            address = self._address()
            is_slave = self._is_slave(address)  # Now: with its last topic a broker leaves the routes.
            request = pull_request(
                self._group,
                self._wire_queue,
                offset,
                count_max,
                byte_max,
                hold=HOLD_SECONDS,
                committed=parameters.committed_offset() if self._broker_id == MASTER_ID else None,
                subscription=parameters.own_subscription(),
                sub_version=parameters.sub_version(),
            )

            sent_at = monotonic()

            def again() -> None:
                if this != self._round:
                    return  # The owner has asked for another offset meanwhile.
                if monotonic() - sent_at < BACKOFF_SECONDS:
                    self._later(again)
                else:
                    self._ask_again(offset, count_max, byte_max)

            def answered(answer: Frame | MQError) -> None:
                self._answered(answer, this, offset, address, is_slave, again)

            self._brokers.remoting.call_async(address, framed(request), answered, ANSWER_SECONDS)
        except BaseException:
            self._drop(this)
            raise

    def _address(self) -> str:
        """The address of the suggested broker if it is known, else the master's or any slave's."""
        cluster, name = self._brokers.cluster, self._queue.broker_name
        cluster.use(self._wire_queue.topic)
        address = cluster.address(name, self._broker_id)
        if address is None:
            self._broker_id = MASTER_ID
            return self._brokers.address(name)
        return address

    def _is_slave(self, address: str) -> bool:
        """Whether it is not the master's address, or there is no master that is known."""
        return address != self._brokers.cluster.address(self._queue.broker_name)

    def _drop(self, this: int) -> bool:
        """Mark the request as no longer pending. False if another one is pending by now."""
        with self._lock:
            if this != self._round:
                return False
            self._asked = -1
            return not self._is_closed

    def _answered(
        self,
        answer: Frame | MQError,
        this: int,
        offset: int,
        address: str,
        is_slave: bool,
        again: Callable[[], None],
    ) -> None:
        if not self._drop(this):
            return
        if isinstance(answer, Frame) and answer.code in NOT_KNOWN:
            self._parameters.on_unknown_member()
            again()
            return
        try:
            if isinstance(answer, MQError):
                raise answer
            result, self._broker_id = pulled(answer, self._queue, offset, address, self._namespace)
            if is_slave and not result.min_offset <= offset <= result.max_offset:
                # What a slave lacks the master may have.
                self._broker_id = MASTER_ID
                again()
                return
        except MQError as error:
            self._broker_id = MASTER_ID
            if isinstance(error, NoSuchTopic):
                if is_slave:
                    again()  # A slave learns of topics later than its master, which may well have this one.
                    return
                self._parameters.on_missing_topic()
            with self._lock:
                self._failure = error
            self._arrived()
            return
        has_none = result.status is PullStatus.NO_MATCHED_MESSAGE and result.next_offset <= offset
        if has_none or result.status is PullStatus.NO_NEW_MESSAGE:
            self._min_offset, self._max_offset = result.min_offset, result.max_offset
            again()
            return
        with self._lock:
            self._result, self._result_of = result, offset
        self._arrived()

    def _ask_again(self, offset: int, count_max: int, byte_max: int) -> None:
        try:
            self._ask(offset, count_max, byte_max)
        except MQError as error:
            with self._lock:
                self._failure = error
            self._arrived()

    def _later(self, again: Callable[[], None]) -> None:
        loop = self._brokers.remoting.events.loop
        loop.call_later(BACKOFF_SECONDS, again)
