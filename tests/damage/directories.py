"""What is done by other users, other programs and other kinds of processes, each in one of its own."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any

import mq
from tests.support.processes.children import hear, say


def hold_as_rocketmq_does(root: str) -> None:
    """RocketMQ's lock: a POSIX record lock on the first byte of `lock`, held until the next line."""
    with (Path(root) / "lock").open("w+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        say("held")
        hear()


def take_as_rocketmq_does(root: str) -> bool:
    """Whether a RocketMQ broker would get its lock now."""
    with (Path(root) / "lock").open("r+b") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError:
            return False
        return True


def failure_of_opening(root: str, options: dict[str, Any]) -> tuple[str, str]:
    """The error's name and text; empty for none."""
    try:
        mq.open(root, **options).close()
    except Exception as error:  # noqa: BLE001 - which one it is is the result
        return type(error).__name__, str(error)
    return "", ""


def modes_of(root: str) -> dict[str, int]:
    """The permissions of a new store and all in it, made under a generous umask."""
    os.umask(0)
    with mq.open(root) as broker:
        broker.topic("orders") if "orders" in broker.topics() else broker.create_topic("orders")
        broker.topic("orders").send(b"body", keys="key")
        broker.query("orders", "key")
    paths = [Path(root), *Path(root).rglob("*")]
    return {str(path.relative_to(root)): path.stat().st_mode & 0o777 for path in paths}
