"""What several suites of keys look at."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import mq
from mq.broker.once import append_once
from mq.store.index.find_records import stored
from mq.store.store import Store


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys for which the index was asked."""
    keys: list[str] = []

    def asking(store: Store, topic: str, key: str, *arguments: Any) -> Iterator[mq.MessageExt]:
        if topic not in append_once.WAITING_TOPICS:
            keys.append(key)
        return stored(store, topic, key, *arguments)

    monkeypatch.setattr(append_once, "stored", asking)
    return keys
