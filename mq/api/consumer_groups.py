"""The consumer groups of a broker: what is asked about one by its name, and Group, one seen from outside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from mq.api.beginning import Beginning, first_offset, first_or_last, time_in_ms
from mq.api.group import Assigned, BroadcastOffsets, Member, Membership, Model, QueueState, Subscription
from mq.api.joining import joining
from mq.api.queues import Queues
from mq.api.results import MessageQueue
from mq.errors import NotPermitted, TopicNotFound
from mq.names import RETRY_PREFIX, check_group

__all__ = ["ConsumerGroups", "Group"]


class ConsumerGroups(Protocol):
    """What a broker does for consumer groups: Broker.consumer_groups.

    Every call raises GroupInvalid for what is no name of a group. One that nobody used is a group without
    members and offsets.
    """

    def names(self) -> list[str]:
        """All consumer groups but RocketMQ's own that have members or offsets, sorted."""
        ...

    def join(
        self,
        group: str,
        *,
        client_id: str,
        model: Model,
        consume_type: str,
        ordered: bool,
        subscriptions: Sequence[Subscription],
        consume_from: str | int | None = "first",
        host: str | None = None,
    ) -> Membership:
        """Become a consumer of a group. model is "clustering" or "broadcasting", consume_type "push" or
        "pull".

        Where the group has no offset of a subscribed topic, it starts where consume_from says: "first",
        "last", or a time in ms; None: nowhere, the consumer says so itself by what it commits first. host
        says where the consumer is, if not on this machine. Raises SubscriptionConflict, GroupInvalid for a
        client id in use, NotPermitted, StoreFull, ValueError.
        """
        check_group(group)
        member = joining(client_id, model, consume_type, ordered, subscriptions, consume_from, host)
        return self.admit(group, member, consume_from)

    def admit(self, group: str, member: Member, consume_from: str | int | None) -> Membership:
        """Let a consumer join: see join, which has checked what it says of itself."""
        ...

    def begin_at_the_end(self, group: str, topic: str, queues: Queues) -> bool:
        """Have a group that has no offset of a topic begin with what comes from now on. Whether it has begun
        the topic by then: not one that is not there, nor where the broker may only read. Raises where not
        every queue's end can be learnt and written."""
        with suppress(TopicNotFound, NotPermitted):
            if not self.offsets(group, topic):
                assigned = self.assigned(group)
                ends = {queue: queues.max_offset(queue) for queue in queues.readable(topic)}
                for queue, end in ends.items():
                    assigned.claim(queue).commit(end)
            return True
        return False

    def assigned(self, group: str) -> Assigned:
        """For a consumer that is told its queues, and does not join the group: it reads and writes the
        group's offsets."""
        ...

    def broadcast_offsets(
        self, group: str, client_id: str | None, directory: Path | None
    ) -> BroadcastOffsets:
        """The offsets of a broadcasting consumer, which take its client id, or a free one, for it alone.

        Kept in the broker's own place, or in a directory, below what tells this store from others there.
        Raises GroupInvalid for a client id in use, StoreCorrupted, NotPermitted, StoreFull."""
        ...

    def members(self, group: str) -> list[Member]:
        """The live consumers, by client_id."""
        ...

    def topics(self, group: str) -> list[str]:
        """Topics that the group has offsets of, or a member subscribes to; sorted."""
        ...

    def offsets(self, group: str, topic: str) -> dict[MessageQueue, int]:
        """What is committed, of the queues that have an offset."""
        ...

    def states(self, group: str, topic: str) -> list[QueueState]:
        """Each queue of a topic: owner, offset, lag, and why it does not move. Raises TopicNotFound,
        NotPermitted."""
        ...

    def retrying(self, group: str) -> dict[str, int]:
        """How many messages of each topic the group sent back, and has not consumed since: they wait until
        they are due again, or lie in its retry topic."""
        ...

    def reset(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Set offsets, also downwards; members that are at work go on from there. Of a broadcasting group
        those of every consumer. Raises ValueError for an offset beyond the end of its queue."""
        ...

    def delete(self, group: str, *, dead_letters: bool = False) -> None:
        """Forget a group without live members: see Group.delete."""
        ...


class Group:
    """One consumer group of a broker, from outside. A name that nobody used is a group without members."""

    __slots__ = ("_groups", "_queues", "name")

    def __init__(self, groups: ConsumerGroups, queues: Queues, name: str) -> None:
        self.name: Final = name
        self._groups = groups
        self._queues = queues

    def members(self) -> list[Member]:
        """The live consumers, by client_id."""
        return self._groups.members(self.name)

    def topics(self) -> list[str]:
        """Topics that the group has offsets of, or a member subscribes to."""
        return self._groups.topics(self.name)

    def offsets(self, topic: str) -> dict[MessageQueue, int]:
        """What is committed, of the queues that have an offset."""
        return self._groups.offsets(self.name, topic)

    def states(self, topic: str) -> list[QueueState]:
        """Each queue of a topic: owner, offset, lag, and why it does not move. A queue that the topic has no
        more to read is among them while it holds messages that the group has not consumed."""
        return self._groups.states(self.name, topic)

    def retrying(self) -> dict[str, int]:
        """Topic to how many of its messages failed and wait for another attempt: until they are due, or in
        the retry topic."""
        return self._groups.retrying(self.name)

    def lag(self, topic: str) -> int:
        """How many messages of a topic the group is not done with: those that are kept and not consumed, also
        in queues that nobody reads, and those that failed and wait for another attempt. 0 where all is done;
        dead letters are."""
        # First what is not consumed: what is sent back meanwhile is found behind.
        unconsumed = sum(state.lag for state in self.states(topic))
        if topic.startswith(RETRY_PREFIX):
            return unconsumed  # What lies there counts for the topic that it was sent to as well.
        return unconsumed + self.retrying().get(topic, 0)

    def reset(self, topic: str, *, to_ms: int | None = None, to: Beginning | None = None) -> None:
        """Have the group consume from elsewhere: the messages stored at to_ms or later, or to "earliest" or
        "latest" ("first" and "last" say the same). Members that are at work go on from there at once. Of a
        broadcasting group every consumer does, those that are not at work when they start. Raises TypeError
        for a to_ms that is no int."""
        if (to is None) == (to_ms is None):
            raise ValueError("give either to_ms, or to: 'earliest' or 'latest'")
        begin = time_in_ms("to_ms", to_ms) if to_ms is not None else first_or_last("to", to)
        queues = self._queues.readable(topic)
        self._groups.reset(self.name, {queue: first_offset(self._queues, queue, begin) for queue in queues})

    def delete(self, *, dead_letters: bool = False) -> None:
        """Forget the group: its offsets, also those of broadcasting consumers, the keys that it has handled
        (mq.Once), and its retry topic with the messages that wait for another attempt; one that is not due
        yet comes to a group that takes the name before it is. Its dead letters stay, unless dead_letters says
        otherwise. A consumer that joins later is the first of a new group.

        Nothing for a group that nobody used. A call that was cut short, by a death too, can be repeated.
        A consumer with assigned queues is no member: if it is at work, its next commit makes the group anew.
        Raises NotPermitted for a group with live members, which it names, and for RocketMQ's own groups.
        """
        self._groups.delete(self.name, dead_letters=dead_letters)

    def __repr__(self) -> str:
        return f"Group({self.name!r})"
