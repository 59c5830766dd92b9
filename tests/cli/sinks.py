"""What a sink of Spark has written: entries of its ledger, and staged files."""

from pathlib import Path

import mq
from mq.sink_ledger import TOPIC, Entry
from tests.support.appending import append_one


def say(broker: mq.LocalBroker, *entries: Entry) -> None:
    if TOPIC not in broker.topics():
        broker.create_topic(TOPIC, 1)
    for entry in entries:
        body = entry.encode()
        append_one(broker, TOPIC, 0, mq.Message(TOPIC, body, keys=entry.txn), body, 0)


def stage(directory: Path, name: str, size: int = 100) -> None:
    path = directory / "mq" / "spark" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"ARROW1".ljust(size - 6, b"\0") + b"ARROW1")
