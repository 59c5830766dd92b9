"""A stream of Spark into the topic results, and what arrived there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mq.broker.local import LocalBroker
from tests.spark.writing import stored
from tests.support.started_queries import begun


def run(frame: Any, directory: Path, checkpoint: Path, **options: str) -> None:
    """From a stream into the topic results, until what is available now is there."""
    query = begun(
        frame.writeStream.format("mq")
        .options(path=str(directory), topic="results", checkpointLocation=str(checkpoint), **options)
        .trigger(availableNow=True)
        .start
    )
    query.awaitTermination()


def results(broker: LocalBroker) -> list[bytes]:
    return sorted((message.body for message in stored(broker, "results")), key=lambda body: (len(body), body))
