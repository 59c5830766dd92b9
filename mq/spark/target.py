"""Which store is meant, as a value that travels to the tasks, and this process's broker of it.

This alone opens a broker: all else of the source and the sink asks one, and its `bulk`.
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
from mq.spark.errors import Refusal, shown

__all__ = ["StoreRef", "broker", "locate", "opened", "refused"]

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
STORE_PARTS = ("commitlog", "config", "mq")
BROKERS_MAX = 16  # kept open; a process that lives long may have seen many stores

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoreRef:
    """A store directory, and by what a task notices that it runs where there is another one of that name, or
    as a user whose store it is not."""

    path: str
    boot_id: str
    device: int
    owner: int


class _Opened(NamedTuple):
    """A broker with the control file of its store, as a descriptor: a store that was recovered, or removed
    and made again, has another one, and as long as this one is open no other has its number."""

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


# Of this process, those used last at the end. Processes that Spark forks have none yet; others begin anew.
opened_brokers: dict[tuple[str, bool], _Opened] = {}


def _after_fork() -> None:
    for opened in opened_brokers.values():
        if opened.control is not None:
            os.close(opened.control)
    opened_brokers.clear()


os.register_at_fork(after_in_child=_after_fork)


def locate(path: str) -> StoreRef:
    """The store at a path of this machine. Raises Refusal where there is none."""
    try:
        absolute = Path(path).absolute()
        found = absolute.stat()
    except ValueError:
        raise Refusal("MQ_STORE", f"option path is {shown(path)}, which no directory is called") from None
    except PermissionError as error:
        user = _user(os.geteuid())
        raise Refusal(
            "MQ_STORE",
            f"option path is {shown(path)}: user {user} may not see what is there ({error.strerror})",
        ) from None
    except OSError as error:
        raise Refusal(
            "MQ_STORE",
            f"option path is {shown(path)}: there is no store at {shown(str(absolute))} ({error.strerror})",
        ) from None
    # Opening makes what is missing; what has nothing of a store is not one that lost its files.
    if absolute.is_dir() and not any((absolute / name).exists() for name in STORE_PARTS):
        raise Refusal("MQ_STORE", f"option path is {shown(path)}: there is no store in {absolute}")
    return StoreRef(str(absolute), _boot_id(), found.st_dev, found.st_uid)


@cache
def _boot_id() -> str:
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


def opened(path: str | os.PathLike[str], *, read_only: bool) -> DirectoryBroker:
    """A broker of a directory that is there. How long messages are kept, and what the delay levels are, is
    the application's affair."""
    return LocalBroker(path, read_only=read_only, create=False, duties=False)


def broker(store: StoreRef, *, writable: bool = False) -> DirectoryBroker:
    """This process's broker of a store, opened on first use and kept. Raises Refusal, saying so where the
    store is somewhere else, or another user's."""
    path = Path(store.path)
    try:
        here = path.stat()
    except PermissionError as error:
        raise refused(store, error) from None
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
        fresh = opened(path, read_only=not writable)
    except (MQError, OSError) as error:
        raise refused(store, error) from None
    try:
        control = os.open(path / "mq" / "control", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        control = None  # Of a store that no mq opened to write yet.
    opened_brokers[key] = _Opened(fresh, control)
    return fresh


def refused(store: StoreRef, error: Exception, done: str = "opened") -> Refusal:
    """The store is here, but not for this process; in most cases because of the user it runs as."""
    text = f"option path is {store.path!r}: the store cannot be {done} by {_process()}: {error}"
    if os.geteuid() not in {0, store.owner}:
        text += f". It is the store of user {_user(store.owner)}: run driver and executors as that user"
    return Refusal("MQ_STORE", text)


def _elsewhere(store: StoreRef, why: str) -> Refusal:
    return Refusal(
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
