"""What a queue commits of that which its filter leaves out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from mq.api.results import MessageQueue
from mq.client.engine.delivery import Delivery, Listener, unheard
from mq.client.engine.owned_queue import OwnedQueue
from mq.filter.selection import Selection
from tests.client.filled_queues import messages


def owned_from_25(listener: Listener) -> OwnedQueue:
    """A queue whose offset is 25, and whose claim takes every commit."""
    claim: Any = SimpleNamespace(
        queue=MessageQueue("orders", "mq", 0),
        puller=lambda: None,
        committed=lambda: 25,
        commit=lambda _: True,
    )
    delivery = Delivery("orders", Selection(None, lambda found: found), listener)
    return OwnedQueue(cast(Any, None), claim, delivery)


def test_what_is_left_out_behind_messages_that_were_forgotten_is_committed() -> None:
    """They were forgotten for another subscription, which leaves them out."""
    owned = owned_from_25(print)
    owned.take_in((25, messages(28, 29, 30), 31))
    owned.deliver_by(Delivery("orders", Selection(None, lambda found: found), print))
    owned.take_in((28, [], 31))
    assert owned.committed == 31


def test_what_was_asked_for_is_committed_by_the_one_who_did() -> None:
    owned = owned_from_25(unheard)
    owned.take_in((25, messages(28, 29, 30), 31))
    request = owned.take(3, 0.0)
    assert request is not None
    owned.finish(request)
    owned.take_in((31, [], 40))
    owned.deliver_by(Delivery("orders", Selection(None, lambda found: found), print))
    owned.take_in((40, [], 50))
    assert owned.committed == 25, "nor is it by a listener that came later"
    owned.commit()
    assert owned.committed == 50
