"""Which member has which queue: from the members of a group and the queues of a topic. Pure.

Every member works this out for itself, from the same two lists, both sorted first; that they come to the
same answer is what makes them agree. Strategies are RocketMQ's, queue for queue:

    "averagely"            blocks of neighbours, as equal as can be; the first members get one more
    "circle"               dealt out like cards
    "consistent-hash"      a ring of hashes: a member that stays keeps nearly all that it had
    config(queues)         what the member was told to have, whatever the others do
    machine_room(rooms)    averagely over the queues of brokers named room@broker, for certain rooms
    nearby(inner, ...)     each room's queues to the members of that room; those of a room without members
                           to all members
    a callable             (group, client_id, queues, client_ids) -> the queues of client_id

Averagely, circle, consistent-hash and nearby over one of these give every queue to exactly one member.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Literal

from mq.api.broker import Member, MessageQueue
from mq.client.listener import check_function
from mq.names import RETRY_PREFIX

Strategy = Callable[[str, str, Sequence[MessageQueue], Sequence[str]], Iterable[MessageQueue]]
StrategyName = Literal["averagely", "circle", "consistent-hash"]
AnyStrategy = StrategyName | Strategy


def allocate(
    strategy: AnyStrategy,
    group: str,
    client_id: str,
    queues: Iterable[MessageQueue],
    client_ids: Iterable[str],
) -> list[MessageQueue]:
    """The queues that this member of the group should have, sorted: none if it is not among the members.

    Raises ValueError for a strategy that does not exist, and for one that answers with anything but some
    of the queues it was given, each once. What a callable raises is passed on.
    """
    chosen = strategy_of(strategy)
    if not client_id:
        raise ValueError("client_id is empty: a member has a name of its own")
    all_queues = sorted(set(queues))
    all_ids = sorted(set(client_ids))
    if not all_queues or client_id not in all_ids:
        return []
    answer = chosen(group, client_id, tuple(all_queues), tuple(all_ids))
    return _checked(_name_of(strategy), answer, all_queues)


def takes_retries(member: Member) -> bool:
    """Whether a member is given what is to be tried again: one that asks for messages has no retries."""
    return member.consume_type == "push"


def sharing(topic: str, members: Iterable[tuple[str, bool]]) -> list[str]:
    """Client ids of the members, each with whether it takes retries, that share the queues of a topic."""
    is_retry = topic.startswith(RETRY_PREFIX)
    return [client_id for client_id, takes in members if takes or not is_retry]


def strategy_of(strategy: AnyStrategy) -> Strategy:
    """The function that a name stands for; a callable is one already. Raises ValueError, TypeError."""
    if callable(strategy):
        check_function("allocate", strategy, may_yield=True)
        return strategy
    if not isinstance(strategy, str):
        raise TypeError(f"a strategy is a name or a callable, not {type(strategy).__name__}")
    if strategy in NAMED:
        return NAMED[strategy]
    if strategy in WITH_FACTS:
        raise ValueError(
            f"the strategy {strategy!r} needs facts: give"
            f" {WITH_FACTS[strategy]} of mq.client.engine.queue_assignment"
        )
    known = ", ".join((*map(repr, NAMED), *WITH_FACTS.values()))
    raise ValueError(f"there is no strategy {strategy!r}: give one of {known}, or a callable")


def averagely(
    _group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
) -> Sequence[MessageQueue]:
    """Blocks of neighbouring queues; where they do not come out even, the first members get one more."""
    index = client_ids.index(client_id)
    size, extra = divmod(len(queues), len(client_ids))
    begin = index * size + min(index, extra)
    return queues[begin : begin + size + (index < extra)]


def circle(
    _group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
) -> Sequence[MessageQueue]:
    """One queue to each member in turn, until there are no more."""
    return queues[client_ids.index(client_id) :: len(client_ids)]


def consistent_hash(virtual_nodes: int = 10, hash: Callable[[str], int] | None = None) -> Strategy:  # noqa: A002 - the name that a reader expects
    """A ring on which each member stands virtual_nodes times; a queue is of the first node at or after it.

    When a member comes or goes, the others only give to it, or get what it had. `hash` maps a text to a
    number; by default it is the first four bytes of MD5, as upstream.
    """
    if virtual_nodes < 1:
        raise ValueError(f"virtual_nodes is {virtual_nodes}: with less than 1 nobody has a place on the ring")
    place_of = hash or ring_hash

    def by_ring(
        _group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        ring = {
            place_of(f"{member}-{node}"): member for member in client_ids for node in range(virtual_nodes)
        }
        places = sorted(ring)
        return [
            queue
            for queue in queues
            if ring[places[bisect_left(places, place_of(_text_of(queue))) % len(places)]] == client_id
        ]

    return by_ring


def config(queues: Iterable[MessageQueue]) -> Strategy:
    """These queues, whether or not other members have them: give each member its own.

    The retry topic of the group is shared averagely unless a queue of it is listed, so that nobody has
    to think of it.
    """
    listed = frozenset(queues)
    for queue in listed:
        if not isinstance(queue, MessageQueue):
            raise TypeError(f"config takes MessageQueues, not {queue!r}")

    def configured(
        group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> Sequence[MessageQueue]:
        topic = queues[0].topic
        mine = [queue for queue in listed if queue.topic == topic]
        if not mine and topic.startswith(RETRY_PREFIX):
            return averagely(group, client_id, queues, client_ids)
        return mine

    return configured


def machine_room(rooms: Iterable[str]) -> Strategy:
    """The queues of brokers named `room@broker` for these rooms, averagely: what is left over goes one by
    one to the first members. Queues of other rooms and brokers go to nobody."""
    if isinstance(rooms, str):
        raise TypeError(f"rooms are several names, not the one text {rooms!r}")
    wanted = frozenset(rooms)

    def by_room(
        _group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        kept = [queue for queue in queues if _room_in(queue.broker_name) in wanted]
        index = client_ids.index(client_id)
        size, extra = divmod(len(kept), len(client_ids))
        mine = kept[size * index : size * (index + 1)]
        if index < extra:
            mine.append(kept[size * len(client_ids) + index])
        return mine

    return by_room


def nearby(
    inner: AnyStrategy, room_of_broker: Callable[[str], str], room_of_client: Callable[[str], str]
) -> Strategy:
    """Queues to members of the same room, by the inner strategy; the queues of a room that has no member
    are shared among all. Both callables name a room, for a broker's name and for a client id."""
    within = strategy_of(inner)

    def by_nearness(
        group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        queues_of: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            room = _named_room(room_of_broker, queue.broker_name, "broker")
            queues_of.setdefault(room, []).append(queue)
        members_of: dict[str, list[str]] = {}
        for member in client_ids:
            members_of.setdefault(_named_room(room_of_client, member, "client"), []).append(member)
        mine: list[MessageQueue] = []
        for room, there in sorted(queues_of.items()):
            members = members_of.get(room, client_ids)
            if client_id in members:
                mine += _checked(_name_of(inner), within(group, client_id, tuple(there), members), there)
        return mine

    return by_nearness


def ring_hash(text: str) -> int:
    """The first four bytes of the MD5 of the text, as a number without sign."""
    digest = hashlib.md5(text.encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big")


NAMED: Final[dict[StrategyName, Strategy]] = {
    "averagely": averagely,
    "circle": circle,
    "consistent-hash": consistent_hash(),
}
WITH_FACTS: Final = {
    "config": "config(queues)",
    "machine-room": "machine_room(rooms)",
    "nearby": "nearby(inner, room_of_broker, room_of_client)",
}


def _checked(name: str, answer: object, given: Sequence[MessageQueue]) -> list[MessageQueue]:
    """The answer of a strategy, sorted, if it is some of the queues given, each once."""
    if isinstance(answer, (str, bytes)) or not isinstance(answer, Iterable):
        raise ValueError(f"the strategy {name} returned {answer!r}, which is no list of queues")
    known = frozenset(given)
    mine: set[MessageQueue] = set()
    for queue in answer:
        if not isinstance(queue, MessageQueue):
            raise ValueError(
                f"the strategy {name} returned {queue!r} among its queues: it is no MessageQueue"
            )
        if queue not in known:
            raise ValueError(
                f"the strategy {name} returned {queue!r}, none of the {len(given)} queues it was given"
            )
        if queue in mine:
            raise ValueError(f"the strategy {name} returned {queue!r} twice")
        mine.add(queue)
    return sorted(mine)


def _name_of(strategy: AnyStrategy) -> str:
    if isinstance(strategy, str):
        return repr(strategy)
    return repr(getattr(strategy, "__name__", strategy))


def _text_of(queue: MessageQueue) -> str:
    """The text that upstream hashes a queue by."""
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"


def _room_in(broker_name: str) -> str | None:
    room, at, _ = broker_name.partition("@")
    return room if at else None


def _named_room(room_of: Callable[[str], str], name: str, kind: str) -> str:
    room = room_of(name)
    if not room or not isinstance(room, str):
        raise ValueError(f"nearby: the room of {kind} {name!r} is {room!r}: name one")
    return room
