"""Images of replay.py as directories, each opened as after a reboot, and looked into.

A control file is believed where it is the very file that was made there, and `lock` has the time that it had:
both are made so, or the way of a store that was closed cleanly would never be taken.
"""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

import mq
from mq.store.check import problems
from mq.store.native import lib
from mq.store.shared.control import Control
from tests.support.insides import was_recovered
from tests.support.power.replay import DIRECTORY, Image, Life, images, load
from tests.support.processes.trace import QUEUE_COUNT, TOPIC, acks, check, seen

__all__ = ["lay_out", "look_into"]

WORD = 8
CONTROL, LOCK = "mq/control", "lock"


@cache
def _inode_at() -> int:
    """Where a control file has its own inode."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "control"
        control = Control(path, create=True)
        mark = random.getrandbits(62)
        control.set(lib.MQ_INODE, mark)
        control.close()
        return path.read_bytes()[: 1 << 16].index(mark.to_bytes(WORD, "little"))


def lay_out(life: Life, image: Image, root: Path) -> None:
    """Make the directory that this image is of."""
    root.mkdir(mode=0o700)
    made: dict[int, Path] = {}
    for name, inode in sorted(image.names.items()):
        path = root / name[len(life.root) + 1 :]
        if inode == DIRECTORY:
            path.mkdir(mode=0o700)
        elif inode in made:
            os.link(made[inode], path)
        else:
            made[inode] = path
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            length = image.lengths[inode]
            os.ftruncate(fd, length)
            for at, data in image.pages[inode].items():
                if at < length:
                    os.pwrite(fd, data[: length - at], at)
            os.close(fd)
            mtime_ns = life.mtimes_ns.get(inode, 0)
            os.utime(path, ns=(mtime_ns, mtime_ns))
    control = image.names.get(f"{life.root}/{CONTROL}")
    if control is not None:
        _be_the_same(root / CONTROL, control)


def _be_the_same(path: Path, inode: int) -> None:
    """Give a control file its new inode, and the checksum that it would have with it, if it had one."""
    with path.open("r+b") as file:
        if os.pread(file.fileno(), WORD, _inode_at()) != inode.to_bytes(WORD, "little"):
            return
        os.pwrite(file.fileno(), path.stat().st_ino.to_bytes(WORD, "little"), _inode_at())
    try:
        control = Control(path, create=False)
    except mq.StoreCorrupted:
        return
    control.set(lib.MQ_INODE, inode)
    was_right = int(lib.mq_control_checksum(control.handle)) == control.get(lib.MQ_CHECKSUM)
    control.set(lib.MQ_INODE, path.stat().st_ino)
    if was_right:
        control.set(lib.MQ_CHECKSUM, int(lib.mq_control_checksum(control.handle)))
    control.close()


def look_into(
    root: str,
    state: str,
    old: tuple[list[str], list[str]],
    new: tuple[list[str], list[str]],
    answer: str,
    *,
    sizes: dict[str, Any],
    strict: bool,
    budget: int | None,
    seed: int,
    log_min: int = 0,
    seconds: float = 600.0,
) -> None:
    """Open every image of the life that has ended, or `budget` of them, and write to `answer` what is wrong.

    old and new: traces of writers and of readers, of earlier lives and of this one.
    """
    logging.getLogger("mq").addHandler(logging.NullHandler())
    life = load(Path(root), Path(state), strict=strict)
    place = Path(answer).with_name("image")
    promises = [ack for path in old[0] for ack in acks(path) if ack.durable]
    sights = [seen(path) for path in old[1]]
    found: dict[str, Any] = {"wrong": [], "images": 0, "attached": 0, "promised": 0, "failed": 0}
    until = time.monotonic() + seconds
    for image in images(life, budget, random.Random(seed)):
        shutil.rmtree(place, ignore_errors=True)
        lay_out(life, image, place)
        promised = promises + [ack for path in new[0] for ack in acks(path, image.end) if ack.durable]
        wrong, attached = _wrong_with(
            place, promised, sights + [seen(path, image.end) for path in new[1]], sizes, log_min
        )
        found["images"] += 1
        found["attached"] += attached
        found["promised"] += len(promised)
        if wrong:
            found["failed"] += 1
            if not found["wrong"]:
                found["wrong"] = [image.what, *wrong[:50]]
                shutil.rmtree(place)
                lay_out(life, image, place.with_name("failed_image"))
            if budget is not None:
                break
        if time.monotonic() > until:
            break
    shutil.rmtree(place, ignore_errors=True)
    fresh = Path(answer + ".new")
    fresh.write_text(json.dumps(found))
    fresh.rename(answer)


def _wrong_with(
    place: Path, promised: list[Any], sights: list[Any], sizes: dict[str, Any], log_min: int
) -> tuple[list[str], bool]:
    try:
        with mq.open(place, flush="sync", duties=False, **sizes) as broker:
            attached = not was_recovered(broker)
            broker.create_topic(TOPIC, QUEUE_COUNT)
            wrong = check(broker, promised, sights, whole_batches=False, log_min=log_min)
            wrong += problems(place)
    except mq.MQError as error:
        return [f"{type(error).__name__}: {error}"], False
    return wrong, attached
