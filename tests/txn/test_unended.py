"""An end that fails while it finds out what became of its transaction, as on a full disk.

The next one ends it, once, even if another producer began it and died.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import mq
from mq.broker.local import LocalBroker
from mq.broker.transactions.half_queues import HALF_TOPIC, name_of
from mq.store.index.find_records import stored
from mq.store.transactions.table import Entry
from tests.support.insides import queue_number
from tests.txn.half_messages import COMMIT, prepared, records


def fail_once(broker: LocalBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index cannot be brought up."""
    failures = [mq.StoreFull("full", path="x")]

    def failing(*arguments: Any, **options: Any) -> Iterator[mq.MessageExt]:
        if failures:
            raise failures.pop()
        return stored(*arguments, **options)

    monkeypatch.setattr("mq.broker.transactions.transactions.stored", failing)


@pytest.mark.parametrize("is_stored", [False, True])
@pytest.mark.parametrize("left", ["asked", "absent", "dead"])
def test_the_next_end_ends_it(
    directory: Path, monkeypatch: pytest.MonkeyPatch, left: str, is_stored: bool
) -> None:
    options: dict[str, Any] = {"transaction_check_interval": 3600.0}
    with ExitStack() as stack:
        first = stack.enter_context(mq.open(directory, **options))
        first.create_topic("orders", 1)
        place = prepared(first, mq.Message("orders", b"one"))
        if left == "absent":
            stack.close()
            (directory / "mq" / "transactions").unlink()
        broker = stack.enter_context(mq.open(directory, **options))
        transactions, (half,) = broker.transactions, records(broker, HALF_TOPIC)
        if is_stored:
            orders = queue_number(broker, mq.MessageQueue("orders", "mq", 0))
            assert transactions.table().store(half.log_offset, orders, broker.route_version())
        if left == "dead":
            with mq.open(directory) as other:
                assert other.transactions.table().claim(name_of(half)) is None
        fail_once(broker, monkeypatch)
        with pytest.raises(mq.StoreFull):
            broker.transactions.ender("payers")(*place, COMMIT, left == "asked")
        assert (
            transactions.table().state(name_of(half))[0]
            == {
                "asked": Entry.PENDING,
                "absent": Entry.ABSENT,
                "dead": Entry.ENDING,
            }[left]
        )
        for _ in range(2):
            broker.transactions.ender("payers")(*place, COMMIT, left == "asked")
        assert [message.body for message in records(broker, "orders")] == [b"one"]
