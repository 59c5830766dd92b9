"""Appends to several queues at once, and the look at what they left."""

from __future__ import annotations

import os
import subprocess
import sys
from array import array
from collections.abc import Sequence
from pathlib import Path

import mq
from mq.api.bulk import Stored
from mq.broker.local import LocalBroker
from tests.support.appending import append_one
from tests.support.processes.fail_build import fail_build

QUEUES = [mq.MessageQueue(topic, "mq", number) for topic in ("orders", "ledger") for number in range(2)]


def append(broker: LocalBroker, sent: Sequence[tuple[int, bytes, str]]) -> Stored:
    encoded = [f"TAGS\x01{tag}\x02".encode() if tag else b"" for _, _, tag in sent]
    return broker.bulk.append(
        QUEUES,
        array("i", [place for place, _, _ in sent]),
        [body for _, body, _ in sent],
        array("i", [len(body) for _, body, _ in sent]),
        encoded,
        array("i", map(len, encoded)),
    )


def stored(broker: LocalBroker, queue: mq.MessageQueue) -> list[tuple[bytes, str]]:
    found, at = [], 0
    while messages := broker.puller(queue)(at, 1000, 1 << 20, None, 0.0).messages:
        assert [message.queue_offset for message in messages] == list(range(at, at + len(messages)))
        found += [(message.body, message.tags or "") for message in messages]
        at += len(messages)
    return found


SMALL_BULK = [(place % 4, b"%d" % place, "") for place in range(6)]
LARGE_BULK = [(place % 3, b"%d" % place * 90, "t") for place in range(60)]


def run_failing(code: str, directory: Path, points: str) -> subprocess.CompletedProcess[str]:
    tree = str(Path(__file__).parents[2])
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(fail_build()), tree]), "MQ_FAIL": points},
        cwd=directory.parent,  # Not the tree, whose build has no points to die at.
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
    )


def check_whole(broker: LocalBroker, *, sent_since: bool = False) -> None:
    if not sent_since:  # Whoever takes the lock repairs.
        append_one(broker, "ledger", 1, mq.Message("ledger", b"after"), b"after", 0)
    found = [stored(broker, queue) for queue in QUEUES]
    assert found[3].pop() == (b"after", "")
    states = [[], SMALL_BULK, [*SMALL_BULK, *LARGE_BULK]]
    wanted = [
        [[(body, tag) for at, body, tag in state if at == place] for place in range(4)] for state in states
    ]
    assert found in wanted
