"""Stores for readers and writers, and one Spark for all. Where the extra spark is not installed, what needs
neither is tested all the same."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from mq.broker.local import LocalBroker
from tests.support.store.small_store import open_small

if find_spec("pyspark") is None:
    collect_ignore = [
        "deployment/test_elsewhere.py",
        "deployment/test_kills.py",
        "deployment/test_long_lived.py",
        "deployment/test_no_java.py",
        "deployment/test_old_spark.py",
        "deployment/test_on_cluster.py",
        "deployment/test_packaging.py",
        "deployment/test_two_applications.py",
        "options/test_contradictions.py",
        "sink/test_rows.py",
        "sink/test_sink.py",
        "sink/test_sinks.py",
        "source/test_batch.py",
        "source/test_checkpoints.py",
        "source/test_each_row_once.py",
        "source/test_input.py",
        "source/test_many_queues.py",
        "source/test_stream.py",
        "source/test_triggers.py",
    ]
    collect_ignore_glob = ["sessions/test_session*.py", "*/test_sink_*.py"]


@pytest.fixture
def broker(directory: Path, request: pytest.FixtureRequest) -> Iterator[LocalBroker]:
    """The application's broker, with a topic of two queues; a test may give it options, indirectly."""
    from tests.spark.reading import forget_brokers

    with open_small(directory, **getattr(request, "param", {})) as broker:
        broker.create_topic("orders", 2)
        yield broker
        forget_brokers()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session of Spark. It takes some 15 s to start and to warm up, so there is one."""
    from tests.spark.session import environment, session

    place = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(place).items():
            patch.setenv(name, value)
        started = session(place)
    # Spark has taken what it needs. A PYTHONPATH that stayed would show another mq to later tests.
    yield started
    started.stop()
