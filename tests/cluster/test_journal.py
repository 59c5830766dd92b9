"""What the tests of mixed groups conclude from a journal."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cluster.journal import Event, out_of_order, overlaps, read, write

QUEUE, OTHER = ("a", 0), ("a", 1)


def begin(member: str, time_ms: int, queue: tuple[str, int] = QUEUE) -> Event:
    return Event("begin", time_ms, member, queue, 7, "m7")


def end(member: str, time_ms: int, queue: tuple[str, int] = QUEUE) -> Event:
    return Event("end", time_ms, member, queue, 7, "m7")


@pytest.mark.parametrize(
    "events",
    [
        [begin("java1", 1), end("java1", 2), begin("mq1", 3), end("mq1", 4)],
        [begin("java1", 1), begin("mq1", 2, OTHER), end("java1", 3)],
        [begin("java1", 1), begin("java1", 2)],
        [begin("java1", 1), Event("killed", 2, "java1"), begin("mq1", 3)],
    ],
    ids=["in turn", "two queues", "one member", "a killed one"],
)
def test_members_in_turn_do_not_overlap(events: list[Event]) -> None:
    assert overlaps(events) == []


def test_two_members_at_work_on_one_queue_overlap() -> None:
    events = [begin("java1", 1), begin("mq1", 6), end("java1", 8), end("mq1", 9)]
    [found] = overlaps(events)
    assert (found.earlier, found.later, found.running_ms) == (events[0], events[1], 5)


def test_a_kill_ends_the_work_of_its_member_alone() -> None:
    events = [begin("java1", 1), begin("mq1", 2, OTHER), Event("killed", 3, "mq1"), begin("mq2", 4)]
    assert [found.earlier.member for found in overlaps(events)] == ["java1"]


def test_a_body_after_a_later_one_of_its_key_is_out_of_order() -> None:
    events = [Event("begin", 0, "java1", QUEUE, 0, body) for body in ("m0", "m2", "m1", "m4", "m2", "m6")]
    assert out_of_order(events, lambda body: int(body[1:]) % 2) == []
    assert [each.body for each in out_of_order(events, lambda _body: 0)] == ["m1"]


def test_a_journal_is_read_as_it_was_written(tmp_path: Path) -> None:
    journal = tmp_path / "group"
    journal.touch()
    write(journal, "begin", "java1", "a", 3, 12, "m7")
    write(journal, "killed", "java1")
    first, second = read(journal)
    assert first == Event("begin", first.time_ms, "java1", ("a", 3), 12, "m7")
    assert second == Event("killed", second.time_ms, "java1")
