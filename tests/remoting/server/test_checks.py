"""Transaction checks go to producers that read what they are sent."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

from mq.remoting.server.checks import Checks


def checks_for(*producers: Any) -> tuple[Checks, Mock]:
    """Of a group with these producers, and the checker of the group, which has none that is due."""
    checker = Mock()
    checker.next.return_value = None
    broker = SimpleNamespace(transactions=SimpleNamespace(enlist=lambda *_: checker))
    members = SimpleNamespace(
        producer_groups=lambda: ["shop"], producers=lambda _: [(each, "client") for each in producers]
    )
    return Checks(cast(Any, broker), cast(Any, members), None), checker


def test_no_check_is_taken_for_producers_that_do_not_read() -> None:
    """Each one that is taken counts towards those after which a transaction is given up."""
    checks, checker = checks_for(SimpleNamespace(has_room=False))
    checks.look()
    checker.next.assert_not_called()


def test_a_check_is_taken_where_one_of_them_reads() -> None:
    checks, checker = checks_for(SimpleNamespace(has_room=False), SimpleNamespace(has_room=True))
    checks.look()
    checker.next.assert_called_once()
