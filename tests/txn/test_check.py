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
    ("times_checked", "immunity_ms", "action"),
    [
        (0, None, Action.ASK),
        (2, 1 << 50, Action.ASK),
        (3, None, Action.GIVE_UP),
        (3, 1 << 50, Action.GIVE_UP),
    ],
)
def test_one_that_is_old_is_asked_about_like_others(
    times_checked: int, immunity_ms: int | None, action: Action
) -> None:
    """Also after a time in which nobody could be asked. A check stores it again, before retention comes."""
    old = NOW - RULES.retention_ms - 1
    assert decide(Half(5, 5, times_checked, old, NOW - 1, immunity_ms), NOW, NOW, RULES) is action
