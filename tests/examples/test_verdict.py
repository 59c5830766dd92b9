"""The verdict of the main job is worth something: each way to fail one of its events is noticed."""

from collections.abc import Callable

import pytest

from examples.replay import IN_ORDER, SELECTED, Delivery, Killed, Outcome, Truth, verdict

PATHS = ["a.py", "b.py", "a.py", "b.py", "a.py", "c.md"]
FIRST, SECOND = (f"{IN_ORDER.group} {number}" for number in (1, 2))

Deliveries = list[Delivery]


def delivery(process: str, seq: int, *, added: int = 1, copy: int = 0) -> Delivery:
    """Every event of queue 0, so that its place is its number."""
    return Delivery(process, f"id {seq}.{copy}", "mq", 0, seq, seq, "m", "code", added, 0)


def truth(*seqs: int) -> Truth:
    expected = Truth(seqs=set(seqs))
    for _ in seqs:
        expected.tally.count("m", "code", 1, 0)
    return expected


TRUTHS = {IN_ORDER.group: truth(*range(6)), SELECTED.group: truth(1, 4)}


def failing(change: Callable[[Deliveries], None], sent: int = 6) -> list[str]:
    """The statements that do not hold of a run with this fault.

    Without one, the first process took 0, 1 and 2 and was killed with 2 in its hands, having committed 0; the
    second one took up there.
    """
    deliveries = [delivery(FIRST, seq) for seq in (0, 1, 2)] + [delivery(SECOND, seq) for seq in range(1, 6)]
    change(deliveries)
    selected = [delivery("selected 2", seq) for seq in (4, 1)]
    killed = {
        IN_ORDER.group: Killed(FIRST, {("mq", 0): 1}, 2),
        SELECTED.group: Killed("selected 1", {("mq", 0): 0}, None),
    }
    run = Outcome(truth(*range(sent)).tally, {IN_ORDER.group: deliveries, SELECTED.group: selected}, killed)
    return [statement for statement, holds in verdict(run, TRUTHS, PATHS).items() if not holds]


def nothing(_: Deliveries) -> None:
    """No fault."""


def lose_one(deliveries: Deliveries) -> None:
    deliveries.pop()


def consume_what_was_never_sent(deliveries: Deliveries) -> None:
    deliveries.append(delivery(SECOND, 5, copy=1))


def take_again_what_was_committed(deliveries: Deliveries) -> None:
    deliveries.insert(3, delivery(SECOND, 0))


def take_twice_in_one_process(deliveries: Deliveries) -> None:
    deliveries.append(delivery(SECOND, 5))


def take_twice_in_two_live_processes(deliveries: Deliveries) -> None:
    deliveries.append(delivery("in-order 3", 5))


def forget_what_the_killed_one_held(deliveries: Deliveries) -> None:
    del deliveries[4]


def swap_two(deliveries: Deliveries) -> None:
    deliveries[0], deliveries[2] = deliveries[2], deliveries[0]


def count_lines_wrongly(deliveries: Deliveries) -> None:
    deliveries[0] = delivery(FIRST, 0, added=7)


def call_it_another_kind(deliveries: Deliveries) -> None:
    deliveries[0] = deliveries[0]._replace(kind="text")


def test_a_run_without_fault_passes() -> None:
    assert failing(nothing) == []


def test_an_event_that_was_not_sent_is_noticed() -> None:
    assert ["were sent" in statement for statement in failing(nothing, sent=5)] == [True]


@pytest.mark.parametrize(
    ("fault", "noticed"),
    [
        (lose_one, "were consumed"),
        (consume_what_was_never_sent, "were consumed"),
        (take_again_what_was_committed, "came again"),
        (take_twice_in_one_process, "came again"),
        (take_twice_in_two_live_processes, "came again"),
        (forget_what_the_killed_one_held, "came again"),
        (swap_two, "in order"),
        (count_lines_wrongly, "lines added"),
        (call_it_another_kind, "tags"),
    ],
)
def test_a_fault_is_noticed(fault: Callable[[Deliveries], None], noticed: str) -> None:
    assert any(noticed in statement for statement in failing(fault))
