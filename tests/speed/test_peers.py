"""A peer does what it is timed for: what was sent is there to be read, once.

They are installed into the benchmark's own directory; one that cannot be had here is left out.
"""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.speed.peers import (
    diskcache,
    iceoryx,
    leveldb,
    litequeue,
    lmdb,
    localqueue,
    persist_queue,
    queuelib,
    rocksdb,
    simple_queue,
    sqlite,
)
from tests.speed.peers.queue import Peer
from tests.speed.processes import together

# Peers leave threads of their own behind in this process; what is forked here never touches them.
pytestmark = [
    pytest.mark.rounds,
    pytest.mark.usefixtures("peers"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]

BODY = b"b" * 100
BATCH_QUEUES: list[Peer[Any]] = [
    leveldb.ASYNC,
    leveldb.SYNC,
    lmdb.NOSYNC,
    lmdb.NOSYNC_DEFAULT_MAP,
    lmdb.SYNC,
    rocksdb.ASYNC,
    sqlite.FULL,
    sqlite.NORMAL,
    sqlite.NORMAL_SHARED,
]
QUEUES: list[Peer[Any]] = [
    *BATCH_QUEUES,
    diskcache.NORMAL,
    litequeue.WAL_NORMAL,
    localqueue.RELAXED,
    persist_queue.FILE,
    queuelib.FIFO,
]
PAIRS: list[Peer[Any]] = [iceoryx.PUBLISH_SUBSCRIBE, simple_queue.SIMPLE_QUEUE]


def installed(peer: Peer[Any]) -> Peer[Any]:
    if not peer.installed():
        pytest.skip(f"{peer.module} cannot be installed here")
    return peer


@pytest.mark.parametrize("peer", QUEUES, ids=str)
def test_what_was_sent_one_by_one_is_read_once(peer: Peer[Any], tmp_path: Path) -> None:
    with closing(installed(peer).open(tmp_path, BODY)) as queue:
        assert queue.send_each(7) == 7
        assert queue.read_each(3) == 3
        assert queue.read_each(9) == 4
        assert queue.read_each(1) == 0


@pytest.mark.parametrize("peer", BATCH_QUEUES, ids=str)
def test_what_was_sent_in_a_batch_is_read_once(peer: Peer[Any], tmp_path: Path) -> None:
    with closing(installed(peer).open(tmp_path, BODY)) as queue:
        assert queue.send_batch(7) == 7
        assert queue.send_each(2) == 2
        assert queue.read_batch(4) == 4
        assert queue.read_batch(9) == 5
        assert queue.read_batch(1) == 0


@pytest.mark.parametrize("peer", PAIRS, ids=str)
def test_a_message_goes_there_and_back(peer: Peer[Any], tmp_path: Path) -> None:
    pair = installed(peer).open(tmp_path, BODY)
    times, _ = together([lambda ready: pair.ping(50, ready), lambda ready: pair.echo(50, ready)])
    assert len(times) == 50
    assert min(times) > 0
