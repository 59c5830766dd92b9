"""The allocation of queues: RocketMQ's worked examples, and invariants for any members and queues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq import MessageQueue
from mq.client.engine.queue_assignment import (
    AnyStrategy,
    StrategyName,
    allocate,
    config,
    consistent_hash,
    machine_room,
    nearby,
    ring_hash,
    sharing,
    strategy_of,
)

THREE = ["c0", "c1", "c2"]


def queues_of(broker: str, count: int) -> list[MessageQueue]:
    return [MessageQueue("T", broker, queue_id) for queue_id in range(count)]


def shares(
    strategy: AnyStrategy, queues: Sequence[MessageQueue], client_ids: Sequence[str]
) -> list[list[MessageQueue]]:
    """What each member gets, worked out by each from lists in another order."""
    return [
        allocate(strategy, "g", client_id, queues[turn:] + queues[:turn], client_ids[::-1])  # type: ignore[operator]  # lists and tuples add
        for turn, client_id in enumerate(client_ids)
    ]


def numbers(shared: list[list[MessageQueue]]) -> list[list[int]]:
    return [[queue.queue_id for queue in mine] for mine in shared]


def named(shared: list[list[MessageQueue]]) -> list[list[str]]:
    return [[f"{queue.broker_name[:2]} {queue.queue_id}" for queue in mine] for mine in shared]


@pytest.mark.parametrize(
    ("strategy", "count", "expected"),
    [
        ("averagely", 8, [[0, 1, 2], [3, 4, 5], [6, 7]]),
        ("averagely", 10, [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]),
        ("averagely", 2, [[0], [1], []]),
        ("circle", 8, [[0, 3, 6], [1, 4, 7], [2, 5]]),
        ("circle", 10, [[0, 3, 6, 9], [1, 4, 7], [2, 5, 8]]),
        ("consistent-hash", 8, [[0, 1, 5, 6], [3, 4], [2, 7]]),
    ],
)
def test_the_measured_examples_over_three_members(
    strategy: StrategyName, count: int, expected: list[list[int]]
) -> None:
    assert numbers(shares(strategy, queues_of("broker-a", count), THREE)) == expected


def test_consistent_hash_over_client_ids_as_upstream_makes_them() -> None:
    client_ids = ["192.168.1.1@100", "192.168.1.1@200", "192.168.1.2@300"]
    shared = shares("consistent-hash", queues_of("broker-a", 8), client_ids)
    assert numbers(shared) == [[0, 2, 4], [3, 5, 7], [1, 6]]


def test_the_check_value_of_the_ring() -> None:
    assert ring_hash("c0-0") == 2_316_876_094


def test_machine_room_leaves_the_queues_of_other_rooms_alone() -> None:
    shared = shares(machine_room({"r1"}), queues_of("r1@b", 8) + queues_of("r2@b", 4), THREE)
    assert named(shared) == [["r1 0", "r1 1", "r1 6"], ["r1 2", "r1 3", "r1 7"], ["r1 4", "r1 5"]]


def test_machine_room_gives_what_is_left_over_to_the_first() -> None:
    assert numbers(shares(machine_room(["r1"]), queues_of("r1@b", 10), THREE)) == [
        [0, 1, 2, 9],
        [3, 4, 5],
        [6, 7, 8],
    ]


def test_machine_room_wants_brokers_that_name_their_room() -> None:
    assert numbers(shares(machine_room(["r1"]), queues_of("r1", 4), THREE)) == [[], [], []]


def room(name: str) -> str:
    return name.partition("-")[0]


def test_nearby_shares_a_room_without_members_among_all() -> None:
    queues = queues_of("r1-b", 4) + queues_of("r2-b", 4) + queues_of("r3-b", 3)
    shared = shares(nearby("averagely", room, room), queues, ["r1-c0", "r1-c1", "r2-c0"])
    assert named(shared) == [
        ["r1 0", "r1 1", "r3 0"],
        ["r1 2", "r1 3", "r3 1"],
        ["r2 0", "r2 1", "r2 2", "r2 3", "r3 2"],
    ]


def test_config_gives_everyone_what_is_listed() -> None:
    listed = config(queues_of("broker-a", 2))
    assert numbers(shares(listed, queues_of("broker-a", 8), THREE)) == [[0, 1]] * 3


def test_config_lists_no_queue_of_this_topic() -> None:
    other = [MessageQueue("other", "broker-a", 0)]
    assert allocate(config(other), "g", "c0", queues_of("broker-a", 2), THREE) == []


def test_config_allocation_includes_every_retry_topic() -> None:
    retries = [MessageQueue("%RETRY%g", "mq", 0)]
    strategy = config(queues_of("mq", 2))
    assert [allocate(strategy, "g", client_id, retries, THREE) for client_id in THREE] == [retries, [], []]
    assert allocate(config(retries), "g", "c2", retries, THREE) == retries


def test_a_client_that_is_not_a_member_gets_no_queue() -> None:
    assert allocate("averagely", "g", "stranger", queues_of("b", 4), THREE) == []


def test_no_queues_or_no_members_give_an_empty_allocation() -> None:
    assert allocate("averagely", "g", "c0", [], THREE) == []
    assert allocate("averagely", "g", "c0", queues_of("b", 4), []) == []


def test_an_empty_client_id_is_refused() -> None:
    with pytest.raises(ValueError, match="client_id is empty"):
        allocate("averagely", "g", "", queues_of("b", 4), ["", "c0"])


def test_a_callable_gets_sorted_lists_and_its_answer_is_sorted() -> None:
    seen: list[Any] = []

    def last_two(
        group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> Any:
        seen.append((group, client_id, list(queues), list(client_ids)))
        return (queue for queue in (queues[-1], queues[-2]))

    queues = queues_of("b", 4)
    assert allocate(last_two, "g", "c1", reversed(queues), ["c1", "c0"]) == queues[2:]
    assert seen == [("g", "c1", queues, ["c0", "c1"])]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, "None, which is no list"),
        (7, "7, which is no list"),
        ("ab", "'ab', which is no list"),
        ([3], "3 among its queues: it is no MessageQueue"),
        ([("T", "b", 0)], "is no MessageQueue"),
        ([MessageQueue("T", "b", 9)], "queue_id=9.*none of the 4 queues"),
        ([MessageQueue("T", "b", 1)] * 2, "queue_id=1.* twice"),
    ],
)
def test_nonsense_from_a_callable_is_named(answer: Any, said: str) -> None:
    def nonsense(*_: Any) -> Any:
        return answer

    with pytest.raises(ValueError, match=f"strategy 'nonsense' returned .*{said}"):
        allocate(nonsense, "g", "c0", queues_of("b", 4), THREE)
    with pytest.raises(ValueError, match=f"strategy 'nonsense' returned .*{said}"):
        allocate(nearby(nonsense, lambda _: "r", lambda _: "r"), "g", "c0", queues_of("b", 4), THREE)


def test_what_a_callable_raises_comes_through() -> None:
    def fails(*_: Any) -> Any:
        raise LookupError("no such host")

    with pytest.raises(LookupError, match="no such host"):
        allocate(fails, "g", "c0", queues_of("b", 4), THREE)


def test_a_queue_that_is_listed_and_does_not_exist_is_named() -> None:
    listed = config([MessageQueue("T", "b", 4)])
    with pytest.raises(ValueError, match=r"'configured' returned .*queue_id=4"):
        allocate(listed, "g", "c0", queues_of("b", 4), THREE)


@pytest.mark.parametrize(
    ("name", "way_out"),
    [
        ("config", r"config\(queues\)"),
        ("machine-room", r"machine_room\(rooms\)"),
        ("nearby", r"nearby\(inner, room_of_broker, room_of_client\)"),
        ("fair", r"'averagely', 'circle', 'consistent-hash', config\(queues\), .*, or a callable"),
    ],
)
def test_a_name_that_is_not_enough_tells_the_way_out(name: Any, way_out: str) -> None:
    with pytest.raises(ValueError, match=way_out):
        strategy_of(name)


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: strategy_of(None), TypeError, "a name or a callable, not NoneType"),  # type: ignore[arg-type]  # the mistake
        (lambda: consistent_hash(-1), ValueError, "virtual_nodes is -1"),
        (lambda: consistent_hash(0), ValueError, "virtual_nodes is 0"),
        (lambda: machine_room("r1"), TypeError, "the one text 'r1'"),
        (lambda: config(["T"]), TypeError, "not 'T'"),  # type: ignore[list-item]  # the mistake
        (lambda: nearby("fair", room, room), ValueError, "no strategy 'fair'"),  # type: ignore[arg-type]  # the mistake
    ],
)
def test_wrong_facts_are_refused(make: Callable[[], object], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        make()


def test_a_room_without_a_name_is_an_error() -> None:
    with pytest.raises(ValueError, match="the room of client 'c0' is ''"):
        allocate(nearby("circle", room, lambda _: ""), "g", "c0", queues_of("r1-b", 2), THREE)


def test_a_hash_of_ones_own() -> None:
    def hash_of(text: str) -> int:
        return int(text[-1]) if text[0] == "c" else 1  # c0-0 stands at 0, c0-1 at 1 with every queue

    assert allocate(consistent_hash(2, hash_of), "g", "c0", queues_of("b", 3), ["c0"]) == queues_of("b", 3)
    # Where two stand at one place, the later one has it.
    assert allocate(consistent_hash(2, hash_of), "g", "c1", queues_of("b", 3), ["c0", "c1"]) == queues_of(
        "b", 3
    )


members = st.lists(
    st.from_regex(r"r[1-3]-[a-z0-9]{1,6}", fullmatch=True), min_size=1, max_size=12, unique=True
)
queue_lists = st.lists(
    st.builds(MessageQueue, st.just("T"), st.sampled_from(["r1-b", "r2-b", "r4-b"]), st.integers(0, 40)),
    min_size=1,
    max_size=40,
    unique=True,
)
whole = st.sampled_from(
    [
        "averagely",
        "circle",
        "consistent-hash",
        consistent_hash(3),
        nearby("averagely", room, room),
        nearby("circle", room, room),
        nearby("consistent-hash", room, room),
    ]
)


@given(whole, queue_lists, members)
def test_every_queue_goes_to_exactly_one_member(
    strategy: AnyStrategy, queues: list[MessageQueue], client_ids: list[str]
) -> None:
    had = Counter(queue for mine in shares(strategy, queues, client_ids) for queue in mine)
    assert had == Counter(queues)


@given(st.sampled_from(["averagely", "circle"]), queue_lists, members)
def test_shares_are_balanced_to_within_one(
    strategy: StrategyName, queues: list[MessageQueue], client_ids: list[str]
) -> None:
    sizes = [len(mine) for mine in shares(strategy, queues, client_ids)]
    assert max(sizes) - min(sizes) <= 1


@given(queue_lists, members, st.data())
def test_on_the_ring_only_the_share_of_a_leaving_member_moves(
    queues: list[MessageQueue], client_ids: list[str], data: st.DataObject
) -> None:
    leaver = data.draw(st.sampled_from(client_ids))
    staying = [client_id for client_id in client_ids if client_id != leaver]
    for client_id in staying:
        before = allocate("consistent-hash", "g", client_id, queues, client_ids)
        after = allocate("consistent-hash", "g", client_id, queues, staying)
        assert set(before) <= set(after)
        left = allocate("consistent-hash", "g", leaver, queues, client_ids)
        assert set(after) - set(before) <= set(left)


def test_retry_queues_are_allocated_to_the_members_that_take_them() -> None:
    members = [("pulls", False), ("pushes", True), ("pushes too", True)]
    assert sharing("orders", members) == ["pulls", "pushes", "pushes too"]
    assert sharing("%RETRY%billing", members) == ["pushes", "pushes too"]
