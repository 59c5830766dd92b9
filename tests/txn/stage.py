"""A store with a database beside it, and the processes at work there; and what is to agree in the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mq
from tests.support.eventually import eventually
from tests.support.processes.fail_build import TREE
from tests.support.processes.nursery import Nursery, Process
from tests.txn.deposits import TOPIC, Database

__all__ = ["Stage", "agreed", "deposited", "nursery_in", "told"]


@contextmanager
def nursery_in(directory: Path) -> Iterator[Nursery]:
    assert mq.__file__ is not None
    report = directory / "report"
    with Nursery(TREE, report, Path(mq.__file__).parents[1], "tests.txn.deposits") as made:
        yield made


class Stage:
    """`options` are those of every broker of it that is not told otherwise."""

    def __init__(self, nursery: Nursery, directory: Path, options: dict[str, Any]) -> None:
        self.nursery = nursery
        self.options = options
        self.directory = directory
        self.path = directory.with_name("database")
        self.database = Database(self.path)
        self._living: list[Process] = []

    def start(self, actor: str, **arguments: Any) -> Process:
        arguments = {"root": self.directory, "options": self.options, **arguments}
        process = self.nursery.start(actor, **arguments)
        self._living.append(process)
        return process

    def holder(self, name: str) -> Process:
        return self._ready("holder", name)

    def checker(self, name: str, **arguments: Any) -> Process:
        return self._ready("checker", name, database=self.path, asked=self.asked_at(name), **arguments)

    def _ready(self, actor: str, name: str, **arguments: Any) -> Process:
        ready = self.directory.with_name(f"{name}.ready")
        process = self.start(actor, ready=ready, **arguments)
        eventually(ready.exists, self.nursery.failures)
        return process

    def asked_at(self, name: str) -> Path:
        return self.directory.with_name(f"{name}.asked")

    def asked(self, name: str) -> list[int]:
        path = self.asked_at(name)
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def was_asked(self, name: str) -> bool:
        return bool(self.asked(name))

    def kill(self, process: Process) -> None:
        process.kill()
        self.forget(process)

    def end(self, process: Process) -> None:
        process.stop()
        self.wait(process)

    def wait(self, process: Process) -> None:
        assert process.wait(60), f"a process does not end: {self.nursery.failures()}"
        self.forget(process)

    def forget(self, process: Process) -> None:
        self._living.remove(process)
        self.nursery.forget(process)

    def end_all(self) -> None:
        for process in list(self._living):
            self.end(process)
        self.database.close()


def deposited(broker: mq.Broker) -> list[int]:
    """The numbers of all messages that can be seen, as often as they can be seen."""
    found = []
    for queue in broker.topic(TOPIC).queues:
        offset = 0
        while messages := queue.read(offset, count_max=1000).messages:
            found += [int(message.body) for message in messages]
            offset += len(messages)
    return sorted(found)


def agreed(broker: mq.Broker, database: Database) -> bool:
    return not broker.transactions.undecided() and deposited(broker) == database.numbers()


def told(broker: mq.Broker, database: Database) -> str:
    """How they disagree."""
    seen, done = deposited(broker), database.numbers()
    twice = sorted({number for number in seen if seen.count(number) > 1})
    return (
        f"undecided {len(broker.transactions.undecided())},"
        f" seen and not done {sorted(set(seen) - set(done))[:10]},"
        f" done and not seen {sorted(set(done) - set(seen))[:10]}, seen twice {twice[:10]}"
    )
