"""Topics that change in one thread or process while another one looks them up."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import mq
from mq.broker.topics.config import Topics, TopicSettings
from mq.broker.topics.registry import Catalog
from mq.store.native import lib
from mq.store.queue import reader
from tests.support.insides import catalog_of, store_of
from tests.support.store.small_store import fill, open_small, send

SOON = 30.0


@pytest.mark.parametrize("step", range(1, 9))
def test_what_one_thread_read_before_is_not_what_another_one_sees(
    directory: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """The first thread has read the file and is held up; then there is a new topic. It goes on while the
    second one looks it up, before the line that is `step` lines on."""
    with open_small(directory, duties=False) as broker, open_small(directory, duties=False) as other:
        other.create_topic("old", 1)
        load, has_read, goes_on = Topics.load, threading.Event(), threading.Event()
        first = threading.Thread(target=broker.topics)

        def held_up(topics: Topics) -> dict[str, TopicSettings]:
            found = load(topics)
            if threading.current_thread() is first:
                has_read.set()
                assert goes_on.wait(SOON)
            return found

        monkeypatch.setattr(Topics, "load", held_up)
        first.start()
        assert has_read.wait(SOON)
        other.create_topic("new", 1)
        lines = 0

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal lines
            if frame.f_code is not Catalog.current.__code__:
                return None
            lines += event == "line"
            if lines == step and event == "line":
                goes_on.set()
                first.join(SOON)
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            catalog_of(broker).current()
        finally:
            sys.settrace(before)
        goes_on.set()
        first.join(SOON)
        assert not first.is_alive()
        assert lines > 3
        assert broker.topics() == ["new", "old"]


def test_a_topic_that_is_deleted_while_a_process_opens_the_directory_stays_deleted(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its settings are gone, its queues are not yet: so it looks like one whose settings were lost."""
    with open_small(directory, duties=False) as broker:
        broker.create_topic("A", 1)
        broker.create_topic("B", 1)
        fill(broker, "A", 3)
        changing, wants = Topics.changing, threading.Event()
        opened: list[list[str]] = []

        def open_it() -> None:
            with open_small(directory, duties=False) as other:
                opened.append(other.topics())

        second = threading.Thread(target=open_it)

        @contextmanager
        def told(topics: Topics) -> Iterator[None]:
            if threading.current_thread() is second:
                wants.set()
            with changing(topics):
                yield

        delete_queues = store_of(broker).delete_queues

        def delete_late(topic: str) -> None:
            second.start()
            assert wants.wait(SOON)
            delete_queues(topic)

        monkeypatch.setattr(Topics, "changing", told)
        monkeypatch.setattr(store_of(broker), "delete_queues", delete_late)
        broker.delete_topic("A")
        second.join(SOON)
        assert opened == [["B"]]
        assert broker.topics() == ["B"]


def test_a_topic_that_is_deleted_while_it_is_read_is_not_there(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no message of it is lost, though its files are missing."""

    class Meanwhile:
        def __getattr__(self, name: str) -> Any:
            return self.pull if name == "mq_pull_wanted" else getattr(lib, name)

        def pull(self, *_: Any) -> int:
            monkeypatch.undo()
            other.delete_topic("A")
            return int(lib.MQ_MISSING)

    with open_small(directory, duties=False) as broker, open_small(directory, duties=False) as other:
        (queue,) = other.create_topic("A", 1).queues
        send(other, "A", 0, b"first", tags="paid")
        monkeypatch.setattr(reader, "lib", Meanwhile())
        with pytest.raises(mq.TopicNotFound):
            broker.topic("A").queues[0].read(0, expression="paid")
        assert queue.topic == "A"


def test_a_topic_that_is_deleted_while_it_is_searched_has_nothing(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_small(directory, duties=False) as broker, open_small(directory, duties=False) as other:
        for name in ("A", "B"):
            other.create_topic(name, 1)
        sent = {name: send(other, name, 0, b"x", keys="k").msg_id for name in ("A", "B")}
        bring_up = store_of(broker).bring_index_up

        def deletes() -> int:
            monkeypatch.undo()
            other.delete_topic("A")
            return bring_up()

        monkeypatch.setattr(store_of(broker), "bring_index_up", deletes)
        assert broker.query("A", "k") == []
        other.create_topic("A", 1)
        visible_end = store_of(broker).visible_end

        def deletes_late() -> int:
            monkeypatch.undo()
            other.delete_topic("A")
            return visible_end()

        # The first topic is searched by then, of those that there were.
        monkeypatch.setattr(store_of(broker), "visible_end", deletes_late)
        assert broker.message(sent["B"]).body == b"x"
        assert broker.topics() == ["B"]


class Died(BaseException):
    """A process, at this very place."""


def dies(*_: object) -> None:
    raise Died


def test_a_topic_that_was_written_and_not_told_of_is_told_of_by_the_next_call(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_small(directory, duties=False) as broker, open_small(directory, duties=False) as other:
        assert broker.topics() == other.topics() == []
        monkeypatch.setattr(store_of(broker), "topics_changed", dies)
        with pytest.raises(Died):
            broker.create_topic("orders", 2)
        monkeypatch.undo()
        assert other.topics() == []
        broker.create_topic("orders", 2)
        assert broker.topics() == other.topics() == ["orders"]


def test_a_deletion_that_was_cut_short_is_finished_by_the_next_one(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_small(directory, duties=False) as broker, open_small(directory, duties=False) as other:
        broker.create_topic("orders", 1)
        send(broker, "orders", 0, b"x")
        monkeypatch.setattr(store_of(broker), "delete_queues", dies)
        with pytest.raises(Died):
            broker.delete_topic("orders")
        monkeypatch.undo()
        other.delete_topic("orders")
        with pytest.raises(mq.TopicNotFound):
            other.delete_topic("orders")
        assert store_of(other).queues() == []


def test_a_broker_closes_when_a_change_that_was_cut_short_is_through(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, begun = threading.Event(), threading.Event()
    with open_small(directory, duties=False) as broker:
        broker.create_topic("orders", 1)
        send(broker, "orders", 0, b"x")
        delete = store_of(broker).delete_queues

        def late(topic: str) -> None:
            begun.set()
            assert goes_on.wait(SOON)
            delete(topic)

        monkeypatch.setattr(store_of(broker), "delete_queues", late)

        def interrupt() -> None:
            begun.wait(SOON)
            os.kill(os.getpid(), signal.SIGUSR1)

        before = signal.signal(signal.SIGUSR1, dies)
        interrupting = threading.Thread(target=interrupt)
        interrupting.start()
        try:
            with pytest.raises(Died):
                broker.delete_topic("orders")
        finally:
            interrupting.join()  # A signal that came later would end this process.
            signal.signal(signal.SIGUSR1, before)
        threading.Timer(0.3, goes_on.set).start()  # While the broker is being closed.
    with open_small(directory, duties=False) as broker:
        assert broker.topics() == []


def test_topics_that_are_written_while_they_are_doubted_are_no_older_copy(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file was read, then it was linked to its .bak, which was read, and then it was replaced."""
    with open_small(directory, duties=False) as broker:
        broker.create_topic("orders", 1)
        broker.create_topic("events", 1)
        topics = Topics(directory)
        names = topics.load()
        backup, samefile = topics.path.with_name("topics.json.bak"), Path.samefile
        backup.unlink()
        os.link(topics.path, backup)

        def replaced_first(path: Path, other: Path) -> bool:
            fresh = path.with_name("topics.json.new")
            fresh.write_bytes(path.read_bytes())
            fresh.replace(path)
            return samefile(path, other)

        assert names
        assert topics.doubts() == []
        monkeypatch.setattr(Path, "samefile", replaced_first)
        assert topics.doubts() == []
        monkeypatch.undo()
        assert topics.doubts() != []  # Nobody wrote meanwhile: two files of one version.
