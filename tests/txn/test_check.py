"""When a half message is due to be asked about, by any clock."""

from __future__ import annotations

import pytest

from mq.broker.transactions.check_loop import Action, Half, Rules, decide

RULES = Rules(timeout_ms=6000, check_max=3, retention_ms=3_600_000)
NOW, HOUR = 1_700_000_000_000, 3_600_000


@pytest.mark.parametrize(
    ("born_ms", "store_ms", "action"),
    [
        (NOW - 6000, NOW - 5999, Action.STOP),
        (NOW - 6001, NOW - 6000, Action.ASK),
        # Stored while the round goes on, as its own copies are.
        (NOW - 7000, NOW, Action.STOP),
        # Store times never go back, so all of them lie ahead when the clock was set back.
        (NOW - 6000, NOW + HOUR, Action.STOP),
        (NOW - 6001, NOW + HOUR, Action.ASK),
        (NOW + HOUR, NOW + HOUR, Action.ASK),
    ],
)
def test_which_producer_is_checked(born_ms: int, store_ms: int, action: Action) -> None:
    assert decide(Half(5, 5, 0, born_ms, store_ms, None), NOW, NOW, RULES) is action


@pytest.mark.parametrize(
    ("times_checked", "is_resumed", "action"),
    [
        (0, False, Action.GIVE_UP),
        (0, True, Action.ASK),
        (1, False, Action.GIVE_UP),
        (3, True, Action.GIVE_UP),
    ],
)
def test_one_that_is_old_is_given_up_unless_it_was_resumed(
    times_checked: int, is_resumed: bool, action: Action
) -> None:
    old = NOW - RULES.retention_ms - 1
    assert decide(Half(5, 5, times_checked, old, NOW - 1, None, is_resumed), NOW, NOW, RULES) is action
