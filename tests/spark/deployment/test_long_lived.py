"""Processes of Spark live long: a store is removed, made again, recovered while they keep a broker of it."""

from __future__ import annotations

import gc
import os
import shutil
from pathlib import Path

from mq.broker.local import LocalBroker
from mq.spark import target
from mq.spark.target import broker as broker_of
from mq.spark.target import locate
from tests.spark.reading import Query, batch_rows, forget_brokers, send
from tests.support.eventually import eventually
from tests.support.store.small_store import open_small


def bodies(directory: Path) -> list[bytes]:
    return [row["body"] for row in batch_rows(directory, "body", topic="orders")]


def open_files(directory: Path) -> list[str]:
    """Those of this process that lie there."""
    gc.collect()  # A closed broker's last descriptors go with it.
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return [place for place in map(os.path.realpath, links) if place.startswith(str(directory))]


def filled(directory: Path, *these: bytes) -> LocalBroker:
    broker = open_small(directory)
    broker.create_topic("orders", 1)
    send(broker, "orders", 0, *these)
    return broker


def test_a_store_removed_and_made_again_at_the_same_path(directory: Path) -> None:
    """A file that is made anew often gets the number of the one that was removed."""
    for number in range(6):
        with filled(directory, b"%d" % number):
            assert bodies(directory) == [b"%d" % number]
        assert bodies(directory) == [b"%d" % number]
        shutil.rmtree(directory)
    with filled(directory):
        forget_brokers()


def test_a_store_that_goes_on_after_all_had_left(directory: Path) -> None:
    sent = []
    for number in range(4):
        with open_small(directory) as broker:
            if number == 0:
                broker.create_topic("orders", 1)
            sent.append(b"%d" % number)
            send(broker, "orders", 0, sent[-1])
            assert bodies(directory) == sent
        assert bodies(directory) == sent
    assert len(target.opened_brokers) == 1
    forget_brokers()


def test_a_store_that_was_recovered(directory: Path) -> None:
    filled(directory, b"one").close()
    assert bodies(directory) == [b"one"]
    (directory / "mq" / "control").write_bytes(bytes(100))  # As good as gone.
    with open_small(directory) as broker:
        send(broker, "orders", 0, b"two")
        assert bodies(directory) == [b"one", b"two"]
        forget_brokers()


def removed_and_held(log: str) -> list[str]:
    held = [line for line in Path("/proc/self/maps").read_text().splitlines() if log in line]
    return [line for line in held if "(deleted)" in line]


def test_files_rolled_and_removed_while_a_query_runs(broker: LocalBroker, directory: Path) -> None:
    query = Query(directory, topic="orders", startingOffsets="earliest")
    log = str(directory / "commitlog")
    for number in range(4):
        sent = [b"%d.%d" % (number, place) + bytes(400) for place in range(30)]
        send(broker, "orders", 0, *sent)
        assert query.all() == sent
        broker.expire(retention_hours=0)
        assert not query.plan()
        # Nothing of what is removed is held, which would take up space as long as the query runs.
        # The broker's own duties may use a file at this moment, and let go of it in a later round.
        eventually(lambda: not removed_and_held(log), lambda: removed_and_held(log))


def test_only_so_many_stores_are_kept_open(tmp_path: Path) -> None:
    paths = [tmp_path / str(number) for number in range(target.BROKERS_MAX + 4)]
    for path in paths:
        filled(path, path.name.encode()).close()
    for path in paths:
        assert bodies(path) == [path.name.encode()]
    assert len(target.opened_brokers) == target.BROKERS_MAX
    assert open_files(tmp_path)
    last = id(broker_of(locate(str(paths[-1]))))
    for path in paths[:4]:
        assert bodies(path) == [path.name.encode()]
    assert id(broker_of(locate(str(paths[-1])))) == last  # It was used lately.
    forget_brokers()
    assert open_files(tmp_path) == []


def test_a_forked_process_has_brokers_of_its_own(broker: LocalBroker, directory: Path) -> None:
    send(broker, "orders", 0, b"one")
    assert bodies(directory) == [b"one"]
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if bodies(directory) == [b"one"] and len(target.opened_brokers) == 1 else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    send(broker, "orders", 0, b"two")
    assert bodies(directory) == [b"one", b"two"]
