"""A queue of a cluster that a consumer owns: its offset, its pulls, its send-backs, and its lock.

RocketMQ's brokers do not assign queues: every member computes the same allocation, and during a rebalance a
queue may have two owners for a moment. For ordered consumption the broker keeps a lock per queue, which the
owner renews; a claim without the lock is lost.

RocketMQ: client/impl/consumer/RebalancePushImpl.java, ProcessQueue.java, ConsumeMessageOrderlyService.java.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from itertools import takewhile
from time import monotonic
from typing import Final, Protocol, TypeVar

from mq.api.group import Subscription
from mq.api.queues import Puller
from mq.api.results import MessageQueue
from mq.errors import MQError, RemotingError, RequestTimeout
from mq.message import MessageExt
from mq.remoting.client.brokers import Brokers
from mq.remoting.client.groups.claim_puller import ClaimPuller
from mq.remoting.client.groups.offsets import QueueOffset
from mq.remoting.client.namespace import Namespace
from mq.remoting.codec.requests.sending import SendMessageBack

__all__ = ["ClaimOwner", "RemoteClaim"]

log = logging.getLogger("mq.groups")

LOCK_SECONDS = 30.0  # how long an unrenewed lock counts as held; the broker keeps it for 60 s
SEND_BACK_SECONDS = 5.0
RELEASE_SECONDS = 5.0  # how long a release waits for one by another thread

T = TypeVar("T")


class ClaimOwner(Protocol):
    """The owner of a claim: a member, or a consumer with manually assigned queues."""

    @property
    def brokers(self) -> Brokers: ...
    @property
    def wire_group(self) -> str: ...
    @property
    def namespace(self) -> Namespace: ...
    def beginning(self, queue: MessageQueue) -> int | None:
        """The first offset if the group has none; None: that of the oldest message."""
        ...

    def is_placeholder(self, queue: MessageQueue) -> bool:
        """Whether an offset of 0 means that the group has no offset."""
        ...

    def own_subscription(self, queue: MessageQueue) -> Subscription | None: ...
    def sub_version(self, queue: MessageQueue) -> int: ...
    def on_unknown_member(self) -> None: ...
    def on_missing_topic(self, claim: RemoteClaim) -> None: ...
    def arrived(self, queue: MessageQueue) -> None: ...
    def released(self, claim: RemoteClaim) -> None: ...
    def is_unresponsive(self, broker_name: str) -> bool:
        """Whether a broker has just failed to answer, so that waiting for it again is useless."""
        ...

    def set_unresponsive(self, broker_name: str) -> None: ...


class RemoteClaim:
    """See mq.api.group.Claim. locked_at: when the member asked for the lock that it has got."""

    def __init__(self, owner: ClaimOwner, queue: MessageQueue, *, locked_at: float | None = None) -> None:
        self.queue: Final = queue
        self.reason = ""
        self._owner = owner
        self._offset = QueueOffset(owner.brokers, owner.wire_group, owner.namespace.wire_queue(queue))
        self._locked_at = locked_at
        self._reset_to: int | None = None
        self._is_lost = self._is_expired = self._is_released = self._is_reset = False
        self._pull: ClaimPuller | None = None
        self._releasing = threading.Lock()

    # Called by the consumer.

    def committed(self) -> int | None:
        """See Claim.committed."""
        self._is_reset = False
        reset_to = self._reset_to
        if reset_to is not None:
            self._offset.set(reset_to)  # If it fails, the next call writes it.
            if self._reset_to == reset_to:
                self._reset_to = None
            return reset_to
        offset = self._queried()
        if offset is None or (offset == 0 and self._owner.is_placeholder(self.queue)):
            offset = self._owner.beginning(self.queue)
            if offset is not None:
                self._offset.set(offset)  # A later owner begins there too.
        return offset

    def _queried(self) -> int | None:
        owner, name = self._owner, self.queue.broker_name
        if owner.is_unresponsive(name):
            # Fail fast: otherwise each queue of this broker would delay the queues of the others.
            address = owner.brokers.cluster.any_address(name)
            raise RemotingError(f"broker {name!r} at {address} did not answer just now", address=address)
        try:
            return self._offset.query()
        except RequestTimeout:
            owner.set_unresponsive(name)
            raise

    def is_current(self) -> bool:
        """See Claim.is_current."""
        return not self._is_reset and not self.is_lost()

    def is_lost(self) -> bool:
        """See Claim.is_lost."""
        locked_at = self._locked_at
        if locked_at is not None and monotonic() - locked_at > LOCK_SECONDS:
            self._is_expired = True  # for good, as a run ends when it is: its rest would count as consumed
        return self._is_lost or self._is_expired

    def while_held(self, messages: Iterator[T]) -> Iterator[T]:
        """See Claim.while_held."""
        if self._locked_at is None:
            return messages
        # No generator: the leader may cut a run short while its thread takes the next message.
        return takewhile(lambda _: not self.is_lost(), messages)

    def commit(self, offset: int) -> bool:
        """See Claim.commit."""
        if not self.is_current() or self._is_released:
            return False
        self._offset.raise_to(offset)
        return True

    def correct(self, offset: int) -> None:
        """See Claim.correct."""
        if self.is_current():
            self._offset.set(offset)

    def puller(self) -> Puller:
        """See Claim.puller."""
        if self._pull is None:
            owner = self._owner
            self._pull = ClaimPuller(
                owner.brokers, owner.wire_group, self.queue, owner.namespace, self, self._arrived
            )
        return self._pull

    def send_back(self, message: MessageExt, *, delay_level: int = 0, max_reconsume_times: int = 16) -> bool:
        """See Claim.send_back."""
        if self.is_lost():
            return False
        request = SendMessageBack(
            offset=message.log_offset,
            group=self._owner.wire_group,
            delay_level=delay_level,
            origin_msg_id=message.msg_id,
            origin_topic=self._owner.namespace.wire(message.topic),
            max_reconsume_times=max_reconsume_times,
            broker_name=self.queue.broker_name,
        )
        self._owner.brokers.ask(self.queue.broker_name, request, timeout=SEND_BACK_SECONDS)
        return True

    def set_status(self, reason: str) -> None:
        """See Claim.set_status."""
        self.reason = reason

    def reserve(self, seconds: float) -> None:
        """Nothing: the broker has the locks."""

    def release(self) -> None:
        """See Claim.release. Where another thread releases it already, waits for that: the offset is written
        before the connections are closed."""
        is_alone = self._releasing.acquire(timeout=RELEASE_SECONDS)
        try:
            if not self._is_released:  # An interrupt may have come behind acquire().
                self._is_released = True
                self._release()
        finally:
            if is_alone:
                self._releasing.release()

    def _release(self) -> None:
        if self._pull is not None:
            self._pull.close()
        try:
            if self._is_lost:
                return
            if self._reset_to is not None:
                self._offset.set(self._reset_to)  # Instead of what was committed before.
            elif self._owner.is_unresponsive(self.queue.broker_name):
                self.write_offset()
            else:
                self._offset.write_and_wait()
        except MQError as error:
            self._owner.set_unresponsive(self.queue.broker_name)
            log.warning(
                "group %s: the offset of %s/%d could not be written when the queue was released, so messages"
                " may be delivered again: %s",
                *(self._owner.wire_group, self.queue.topic, self.queue.queue_id, error),
            )
        finally:
            self._owner.released(self)

    # Called by the member, from any thread.

    @property
    def is_locked(self) -> bool:
        return self._locked_at is not None

    @property
    def offset(self) -> int | None:
        """The offset that was committed last."""
        return self._offset.offset

    def renewed(self, asked_at: float) -> None:
        """The broker has confirmed the lock, for which it was asked at this time: its answer may be late."""
        self._locked_at = asked_at

    def lose(self) -> None:
        """Another member has the queue."""
        self._is_lost = True
        if self._pull is not None:
            self._pull.close()

    def reset(self, offset: int) -> None:
        """An operator set the offset."""
        self._reset_to = offset
        self._is_reset = True

    def begin_anew(self) -> None:
        """The topic was deleted: the offset is of no use for another one of its name."""
        self._offset.forget()
        self._is_reset = True

    def write_offset(self) -> None:
        """Send the committed offset to the broker."""
        if not self.is_lost() and not self._is_reset:
            self._offset.write()

    def check_offset(self) -> None:
        """Replace a smaller offset at the broker: an earlier owner may have written it late. Not where the
        consumer has not taken yet what says that the offset was reset."""
        is_moved = self._pull is not None and self._pull.is_moved
        if not self.is_lost() and not self._is_reset and not is_moved:
            self._offset.check()

    # Called by its pulls: see PullParameters.

    def committed_offset(self) -> int | None:
        return None if self._is_reset or self.is_lost() else self._offset.to_carry()

    def own_subscription(self) -> Subscription | None:
        return self._owner.own_subscription(self.queue)

    def sub_version(self) -> int:
        return self._owner.sub_version(self.queue)

    def on_unknown_member(self) -> None:
        self._owner.on_unknown_member()

    def on_missing_topic(self) -> None:
        self._owner.on_missing_topic(self)

    def _arrived(self) -> None:
        self._owner.arrived(self.queue)
