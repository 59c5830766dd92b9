"""The checks that the tests of groups end with find what they are for."""

from __future__ import annotations

from pathlib import Path

from tests.groups.trace import EVENT, Ack, Event, Kind, Look, events, missing, overlaps, repeats, unordered
from tests.support.processes.trace import Log


def event(kind: Kind, process: int, offset: int, time_ns: int, queue: int = 0) -> Event:
    return Event(kind, process, queue, offset, time_ns, 1, offset, 0)


def stay(process: int, offset: int, begin: int, end: int, queue: int = 0) -> list[Event]:
    return [
        event(Kind.ENTERED, process, offset, begin, queue),
        event(Kind.RETURNED, process, offset, end, queue),
    ]


def in_order(*parts: list[Event]) -> list[Event]:
    return sorted((each for part in parts for each in part), key=lambda each: each.time_ns)


def test_events_are_read_in_the_order_of_their_times(tmp_path: Path) -> None:
    for process, time_ns in ((1, 20), (2, 10)):
        log = Log(tmp_path / f"{process}", EVENT)
        log.add(event(Kind.ENTERED, process, 5, time_ns))
        log.close()
    with (tmp_path / "2").open("ab") as file:
        file.write(b"torn")
    assert [each.process for each in events(sorted(tmp_path.iterdir()))] == [2, 1]


def test_a_result_without_a_return_is_missing() -> None:
    promised = [Ack(1, offset, 0, offset) for offset in range(3)]
    happened = in_order(stay(1, 0, 10, 20), [event(Kind.ENTERED, 1, 1, 30)])
    assert [text.split(",")[1] for text in missing(promised, happened)] == [" sequence=1", " sequence=2"]
    assert missing(promised[:1], happened) == []


def test_a_repeat_needs_a_kill() -> None:
    twice = in_order(stay(1, 0, 10, 20), stay(2, 0, 30, 40))
    assert repeats(twice, {1: 25}) == (1, [])
    assert len(repeats(twice, {})[1]) == 1
    assert len(repeats(twice, {2: 35})[1]) == 1
    assert repeats(in_order(stay(1, 0, 10, 20), stay(1, 1, 30, 40)), {}) == (0, [])


def test_a_repeat_of_a_committed_message_is_wrong_whichever_process_died() -> None:
    twice = in_order(stay(1, 0, 10, 20), stay(2, 0, 30, 40))
    assert repeats(twice, {1: 25}, [Look(0, 0, 0, 15), Look(0, 0, 1, 35)])[1] == []
    assert len(repeats(twice, {1: 25}, [Look(0, 0, 0, 15), Look(0, 0, 1, 22)])[1]) == 1
    assert len(repeats([], {}, [Look(0, 0, 5, 1), Look(0, 0, 4, 2)])[1]) == 1


def test_two_inside_at_a_time_are_found() -> None:
    same = in_order(stay(1, 0, 10, 30), stay(2, 0, 20, 40))
    assert len(overlaps(same, {}, by_queue=False)) == 1
    neighbours = in_order(stay(1, 0, 10, 30), stay(2, 1, 20, 40))
    assert overlaps(neighbours, {}, by_queue=False) == []
    assert len(overlaps(neighbours, {}, by_queue=True)) == 1
    assert overlaps(in_order(stay(1, 0, 10, 30), stay(2, 1, 20, 40, queue=1)), {}, by_queue=True) == []
    within = in_order(stay(1, 0, 10, 90), stay(2, 1, 20, 30), stay(3, 2, 40, 50))
    assert len(overlaps(within, {}, by_queue=True)) == 2


def test_a_killed_process_was_active_until_its_death() -> None:
    died = in_order([event(Kind.ENTERED, 1, 0, 10)], stay(2, 0, 30, 40))
    assert overlaps(died, {1: 20}, by_queue=True) == []
    assert len(overlaps(died, {1: 35}, by_queue=True)) == 1
    assert "never ended" in overlaps(died, {}, by_queue=True)[0]


def test_first_deliveries_out_of_order_are_found() -> None:
    again = in_order(stay(1, 0, 10, 11), stay(1, 1, 12, 13), stay(2, 0, 20, 21), stay(2, 1, 22, 23))
    assert unordered(again) == []
    assert len(unordered(in_order(stay(1, 1, 10, 11), stay(1, 0, 12, 13)))) == 1
