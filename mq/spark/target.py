"""A reference to a store that can be pickled for the tasks, and this process's cache of open brokers.

Only this module opens the broker of a directory for the source and the sink.
"""

from __future__ import annotations

import logging
import os
import pwd
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from mq.api.broker import DirectoryBroker
from mq.broker.local import LocalBroker
from mq.errors import MQError
from mq.spark.errors import SparkError, short
from mq.store.directory.root import holds_store

__all__ = ["StoreRef", "broker", "locate", "open_store", "store_error"]

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
BROKERS_MAX = 16  # kept open; a process that lives long may have seen many stores

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoreRef:
    """A store directory, with the boot id, device and owner that the driver saw. A task compares them to
    detect another machine, another directory of the same name, or another user."""

    path: str
    boot_id: str
    device: int
    owner: int


class _OpenBroker(NamedTuple):
    """A broker, with an open descriptor of its store's control file. A store that was recovered or re-created
    has another control file; while the descriptor is open, no other file gets the same inode number."""

    broker: DirectoryBroker
    control: int | None

    def is_current(self, path: Path) -> bool:
        try:
            there = (path / "mq" / "control").stat()
        except OSError:
            return self.control is None
        if self.control is None:
            return False
        here = os.fstat(self.control)
        return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)

    def close(self) -> None:
        if self.control is not None:
            os.close(self.control)
        try:
            self.broker.close()
        except (MQError, OSError) as error:
            _log.warning("closing %s: %s", self.broker, error)


# The open brokers of this process, the most recently used last. A forked child starts with an empty cache.
opened_brokers: dict[tuple[str, bool], _OpenBroker] = {}


def _after_fork() -> None:
    for open_broker in opened_brokers.values():
        if open_broker.control is not None:
            os.close(open_broker.control)
    opened_brokers.clear()


os.register_at_fork(after_in_child=_after_fork)


def locate(path: str) -> StoreRef:
    """The store at a path of this machine. Raises SparkError if there is none."""
    try:
        absolute = Path(path).absolute()
        found = absolute.stat()
    except ValueError:
        raise SparkError("MQ_STORE", f"option path is {short(path)}, which no directory is called") from None
    except PermissionError as error:
        user = _user(os.geteuid())
        raise SparkError(
            "MQ_STORE",
            f"option path is {short(path)}: user {user} may not see what is there ({error.strerror})",
        ) from None
    except OSError as error:
        raise SparkError(
            "MQ_STORE",
            f"option path is {short(path)}: there is no store at {short(str(absolute))} ({error.strerror})",
        ) from None
    # Opening would create a store here. A directory without any part of a store is probably a wrong path.
    if absolute.is_dir() and not holds_store(absolute):
        raise SparkError("MQ_STORE", f"option path is {short(path)}: there is no store in {absolute}")
    return StoreRef(str(absolute), _boot_id(), found.st_dev, found.st_uid)


@cache
def _boot_id() -> str:
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


def open_store(path: str | os.PathLike[str], *, read_only: bool) -> DirectoryBroker:
    """A broker of an existing directory. It performs no duties: retention and delay levels are settings of
    the application."""
    return LocalBroker(path, read_only=read_only, create=False, duties=False)


def broker(store: StoreRef, *, writable: bool = False) -> DirectoryBroker:
    """This process's broker of a store, opened on first use and kept. Raises SparkError, for example if the
    store is on another machine or belongs to another user."""
    path = Path(store.path)
    try:
        here = path.stat()
    except PermissionError as error:
        raise store_error(store, error) from None
    except OSError as error:
        raise _elsewhere(store, error.strerror or str(error)) from None
    if _boot_id() != store.boot_id or here.st_dev != store.device:
        raise _elsewhere(store, "the directory of that name here is another one")
    key = store.path, writable
    known = opened_brokers.pop(key, None)
    if known is not None:
        if known.is_current(path):
            opened_brokers[key] = known
            known.broker.bulk.release()
            return known.broker
        known.close()
    while len(opened_brokers) >= BROKERS_MAX:
        opened_brokers.pop(next(iter(opened_brokers))).close()
    try:
        fresh = open_store(path, read_only=not writable)
    except (MQError, OSError) as error:
        raise store_error(store, error) from None
    try:
        control = os.open(path / "mq" / "control", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        control = None  # No mq has opened this store for writing yet.
    opened_brokers[key] = _OpenBroker(fresh, control)
    return fresh


def store_error(store: StoreRef, error: Exception, done: str = "opened") -> SparkError:
    """The error for a store that exists here but that this process cannot use, mostly for lack of
    permission."""
    text = f"option path is {store.path!r}: the store cannot be {done} by {_process()}: {error}"
    if os.geteuid() not in {0, store.owner}:
        text += f". It is the store of user {_user(store.owner)}: run driver and executors as that user"
    return SparkError("MQ_STORE", text)


def _elsewhere(store: StoreRef, why: str) -> SparkError:
    return SparkError(
        "MQ_STORE_NOT_LOCAL",
        f"option path is {store.path!r}: the store was found by the driver and is not there for {_process()}:"
        f" {why}. A store is a directory of one machine: run the executors where the driver runs, by master"
        " local[*] or local-cluster, or as a cluster of that one node",
    )


def _process() -> str:
    return f"process {os.getpid()} of user {_user(os.geteuid())} on {os.uname().nodename}"


def _user(number: int) -> str:
    try:
        return f"{pwd.getpwuid(number).pw_name} ({number})"
    except KeyError:
        return str(number)
