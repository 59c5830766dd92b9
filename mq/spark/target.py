"""Which store is meant, as a value that travels to the tasks, and this process's broker of it."""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass
from pathlib import Path

from mq.broker.local import LocalBroker
from mq.errors import MQError
from mq.spark.refusal import Refusal

__all__ = ["StoreRef", "broker", "locate", "refused"]

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
RETENTION_HOURS_MAX = 24 * 365 * 100  # how long messages are kept is the application's affair


@dataclass(frozen=True)
class StoreRef:
    """A store directory, and by what a task notices that it runs where there is another one of that name, or
    as a user whose store it is not."""

    path: str
    boot_id: str
    device: int
    owner: int


# One broker for each store of this process; with the control file that it has mapped, since a store that was
# recovered has a new one.
_brokers: dict[tuple[str, bool], tuple[LocalBroker, int]] = {}


def locate(path: str) -> StoreRef:
    """The store at a path of this machine. Raises Refusal where there is none."""
    absolute = Path(path).absolute()
    try:
        found = absolute.stat()
    except PermissionError as error:
        user = _user(os.geteuid())
        raise Refusal(
            "MQ_STORE", f"option path is {path!r}: user {user} may not see what is there ({error.strerror})"
        ) from None
    except OSError as error:
        raise Refusal(
            "MQ_STORE", f"option path is {path!r}: there is no store at {absolute} ({error.strerror})"
        ) from None
    return StoreRef(str(absolute), _boot_id(), found.st_dev, found.st_uid)


def _boot_id() -> str:
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


def broker(store: StoreRef, *, writable: bool = False) -> LocalBroker:
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
    control = _control_of(path)
    if key in _brokers:
        known, opened_with = _brokers[key]
        if opened_with == control:
            return known
        del _brokers[key]
        known.close()
    try:
        opened = LocalBroker(path, read_only=not writable, create=False, retention_hours=RETENTION_HOURS_MAX)
    except (MQError, OSError) as error:
        raise refused(store, error) from None
    _brokers[key] = opened, _control_of(path)
    return opened


def _control_of(path: Path) -> int:
    try:
        return (path / "mq" / "control").stat().st_ino
    except OSError:
        return 0


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
