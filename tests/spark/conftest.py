"""Stores for the readers, which are as small as those of the store's own tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mq.broker.local import LocalBroker
from tests.spark.reading import forget_brokers
from tests.store.small_store import open_small


@pytest.fixture
def broker(directory: Path) -> Iterator[LocalBroker]:
    """The application's broker, with a topic of two queues."""
    with open_small(directory) as broker:
        broker.create_topic("orders", 2)
        yield broker
        forget_brokers()
