"""A master's log for replicas to follow, and what a directory holds then."""

from __future__ import annotations

import os
import random
from pathlib import Path

import mq
from mq.store.log.commitlog import segment_files

__all__ = ["log_of", "mixed_log", "units_of"]


def log_of(path: Path) -> bytes:
    """Everything in the files of a log, from the oldest on."""
    return b"".join(file.read_bytes() for file in segment_files(path / "commitlog"))


def mixed_log(path: Path, chance: random.Random, file_size: int, count: int) -> bytes:
    """The log of a master, of files of this size, with all kinds of records: usual ones, halves and ends of
    transactions, delayed ones, batches, a topic that is deleted and made again."""
    with mq.open(path, commitlog_file_size=file_size) as broker:
        topics = [broker.create_topic(f"topic-{number}", 1 + number % 3) for number in range(12)]
        with (
            mq.Producer(broker) as producer,
            mq.TransactionProducer(broker, "payers", check=lambda _: mq.TransactionState.COMMIT) as payer,
        ):
            for number in range(count):
                name, kind = chance.choice(topics).name, chance.random()
                body = os.urandom(chance.choice((1, 50, 300, 1000)))
                if kind < 0.9:
                    producer.send(
                        mq.Message(name, body, tags=chance.choice(("a", "b", None)), keys=f"k{number}")
                    )
                elif kind < 0.93:
                    producer.send(mq.Message(name, body, delay_level=chance.choice((1, 18))))
                elif kind < 0.96:
                    producer.send_batch([mq.Message(name, body)] * 20)
                else:
                    with payer.begin(mq.Message(name, body)) as transaction:
                        if kind < 0.98:
                            transaction.rollback()
                if number == count // 2:
                    broker.delete_topic("topic-5")
                    topics[5] = broker.create_topic("topic-5", 2)
        end = broker.replication.log_range[1]
    return log_of(path)[:end]


def units_of(path: Path) -> dict[str, bytes]:
    """The files of all queues."""
    root = path / "consumequeue"
    return {str(file.relative_to(root)): file.read_bytes() for file in root.rglob("0*") if file.is_file()}
