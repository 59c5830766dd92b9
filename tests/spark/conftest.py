"""Stores for the readers, which are as small as those of the store's own tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mq.broker.local import LocalBroker
from tests.spark.reading import forget_brokers
from tests.spark.session import environment, session
from tests.store.small_store import open_small


@pytest.fixture
def broker(directory: Path) -> Iterator[LocalBroker]:
    """The application's broker, with a topic of two queues."""
    with open_small(directory) as broker:
        broker.create_topic("orders", 2)
        yield broker
        forget_brokers()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session of Spark. It takes some 15 s to start and to warm up, so there is one."""
    place = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(place).items():
            patch.setenv(name, value)
        started = session(place)
        yield started
        started.stop()
