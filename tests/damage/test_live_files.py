"""Files change while several processes have the store open.

Bytes that change under a reader's hands are an error or a gap, as on disk, and reading on sees them put right
again. Files that vanish stay readable for processes that have them mapped. Shared memory (mq/control) is not
changed here: only the running processes write there. Nor are files cut short: a mapped page
behind a file's end raises a signal in the process that touches it.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import mq
from tests.damage import filling, known, living
from tests.support.processes.children import Child, call

ROUNDS = 40
DERIVED = ("consumequeue", "index", "config", "checkpoint")


def flipped(random_: random.Random, path: Path, count: int) -> list[tuple[int, bytes]]:
    """Flip bits, mostly in the part that is in use; what stood there."""
    size = len(path.read_bytes()[: 1 << 16].rstrip(b"\0"))
    if size == 0:
        return []
    before = []
    fd = os.open(path, os.O_RDWR)
    for _ in range(count):
        at = random_.randrange(size)
        byte = os.pread(fd, 1, at)
        before.append((at, byte))
        os.pwrite(fd, bytes([byte[0] ^ 1 << random_.randrange(8)]), at)
    os.close(fd)
    return before


def put_back(path: Path, before: list[tuple[int, bytes]]) -> None:
    fd = os.open(path, os.O_RDWR)
    for at, byte in reversed(before):
        os.pwrite(fd, byte, at)
    os.close(fd)


def test_bits_flip_under_readers(tmp_path: Path) -> None:
    root = str(tmp_path / "store")
    stored = call(known.make, root, 21)
    random_ = random.Random(21)
    with Child(living.keep_looking, root, stored) as one, Child(living.keep_looking, root, stored) as two:
        assert (one.hear(), two.hear()) == ("open", "open")
        shorter = 0
        for _ in range(ROUNDS):
            path = random_.choice(living.files_of(root, ("commitlog", *DERIVED)))
            # While they look and between two looks.
            one.say("look")
            before = flipped(random_, path, random_.choice((1, 3, 30)))
            two.say("look")
            for child in (one, two):
                shorter += int(child.hear()) < len(stored.records)
            put_back(path, before)
        for child in (one, two):
            child.say("look")
            assert int(child.hear()) == len(stored.records)
            child.say("end")
            child.result()
        assert shorter
    assert call(known.look, root, stored)[1] == {}


def test_bits_flip_under_a_sender(tmp_path: Path) -> None:
    """Where it writes is not damaged here: only what was there before, and what is derived."""
    root = str(tmp_path / "store")
    stored = call(known.make, root, 22)
    random_ = random.Random(22)
    with Child(living.send_through_damage, root, 600) as sender:
        assert sender.hear() == "open"
        paths = living.files_of(root, ("index", "checkpoint"))
        sender.say("go")
        for _ in range(300):
            flipped(random_, random_.choice(paths), 2)
        assert sender.result() == 600
    found = call(filling.all_of, root)
    assert len(found) == len(stored.records) + 600
    for place, record in stored.records.items():
        assert found[place] == filling.digest(mq.MessageExt(record, "mq").body)


def test_files_vanish_under_readers(tmp_path: Path) -> None:
    """Someone removes the store's files, all of them, while it is in use."""
    root = str(tmp_path / "store")
    stored = call(known.make, root, 23)
    with Child(living.keep_looking, root, stored) as one, Child(living.keep_looking, root, stored) as two:
        assert (one.hear(), two.hear()) == ("open", "open")
        one.say("look")
        assert int(one.hear()) == len(stored.records)
        for part in ("commitlog", "consumequeue", "index", "config"):
            shutil.rmtree(tmp_path / "store" / part)
        one.say("look")
        # What this one has mapped it goes on reading; by key it finds nothing more.
        assert int(one.hear()) >= 0
        two.say("look")
        assert int(two.hear()) <= len(stored.records)
        for child in (one, two):
            child.kill()
