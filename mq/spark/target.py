"""Which store is meant, as a value that travels to the tasks, and this process's broker of it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from mq.broker.local import LocalBroker
from mq.errors import MQError
from mq.spark.refusal import Refusal

__all__ = ["StoreRef", "broker", "locate"]

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
RETENTION_HOURS_MAX = 24 * 365 * 100  # how long messages are kept is the application's affair


@dataclass(frozen=True)
class StoreRef:
    """A store directory, and by what a task notices that it runs where there is another one of that name."""

    path: str
    boot_id: str
    device: int


# One broker for each store of this process; with the control file that it has mapped, since a store that was
# recovered has a new one.
_brokers: dict[tuple[str, bool], tuple[LocalBroker, int]] = {}


def locate(path: str) -> StoreRef:
    """The store at a path of this machine. Raises Refusal where there is none."""
    absolute = Path(path).absolute()
    try:
        found = absolute.stat()
    except OSError as error:
        raise Refusal(
            "MQ_STORE", f"option path is {path!r}: there is no store at {absolute} ({error.strerror})"
        ) from None
    return StoreRef(str(absolute), _boot_id(), found.st_dev)


def _boot_id() -> str:
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


def broker(store: StoreRef, *, writable: bool = False) -> LocalBroker:
    """This process's broker of a store, opened on first use and kept. Raises Refusal, saying so where the
    store is somewhere else."""
    path = Path(store.path)
    try:
        here = path.stat()
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
        raise Refusal(
            "MQ_STORE", f"the store {store.path} cannot be opened by user {os.getuid()}: {error}"
        ) from None
    _brokers[key] = opened, _control_of(path)
    return opened


def _control_of(path: Path) -> int:
    try:
        return (path / "mq" / "control").stat().st_ino
    except OSError:
        return 0


def _elsewhere(store: StoreRef, why: str) -> Refusal:
    return Refusal(
        "MQ_STORE_NOT_LOCAL",
        f"the store {store.path} was found by the driver and is not there for process {os.getpid()} of"
        f" {os.uname().nodename}: {why}. A store is a directory of one machine: run the executors there",
    )
