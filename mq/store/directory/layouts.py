"""The layouts of our own binary files under mq/, by number: raised when a field of one moves.

All processes that have a store open go by the same ones: MQ_LAYOUTS, a word of the control file, has a byte
for each, and a process that goes by others is refused. Nobody else being inside, a file of another layout is
made anew, but for mq/once, which nothing else knows of.
"""

from __future__ import annotations

import struct
from pathlib import Path

from mq.errors import VersionMismatch
from mq.store.native import lib

__all__ = ["LAYOUTS", "check_control", "check_kept_file", "check_layouts", "packed"]

# In the order of their bytes, which stays; new ones come last.
LAYOUTS: dict[str, int] = {
    "mq/control": lib.MQ_CONTROL_LAYOUT,
    "mq/groups": 5,
    "mq/delay": 1,
    "mq/timer": 1,
    "mq/transactions": lib.MQ_TRANSACTIONS_LAYOUT,
    "mq/dedup": lib.MQ_DEDUP_LAYOUT,
    "mq/once": 1,
}
CONTROL_HEAD = struct.Struct("@8sq")
CONTROL_STAMP = b"mqctrl\0\0"


def packed() -> int:
    """All layouts of this version, as MQ_LAYOUTS has them."""
    return int.from_bytes(bytes(LAYOUTS.values()), "little")


def check_layouts(root: Path, word: int) -> None:
    """Raises VersionMismatch where the processes inside go by other layouts than this one."""
    found = word.to_bytes(8, "little", signed=True)
    for (name, needed), there in zip(LAYOUTS.items(), found, strict=False):
        if there != needed:
            raise _mismatch(root, name, there, needed)


def check_control(root: Path) -> None:
    """The same of the control file, of which another version can make nothing else out."""
    try:
        with (root / "mq" / "control").open("rb") as file:
            head = file.read(CONTROL_HEAD.size)
    except OSError:
        return
    if len(head) == CONTROL_HEAD.size:
        stamp, layout = CONTROL_HEAD.unpack(head)
        if stamp == CONTROL_STAMP and layout != lib.MQ_CONTROL_LAYOUT:
            raise _mismatch(root, "mq/control", layout, lib.MQ_CONTROL_LAYOUT)


def check_kept_file(path: Path, name: str, stamp: bytes, head: bytes) -> None:
    """The same of a file whose content is nowhere else: with another number in its stamp it is left alone."""
    number = head[len(stamp) - 2 : len(stamp)]
    if head.startswith(stamp[:-2]) and number.isdigit() and int(number) != LAYOUTS[name]:
        raise VersionMismatch(
            f"{path} is of another version of mq: it has layout {int(number)}, and {LAYOUTS[name]} in this"
            " version. Use that version, or remove the file, with all that it keeps",
            path=str(path),
            found=int(number),
            needed=LAYOUTS[name],
        )


def _mismatch(root: Path, name: str, found: int, needed: int) -> VersionMismatch:
    which = "a later" if found > needed else "an earlier"
    return VersionMismatch(
        f"{root} is open in another version of mq, {which} one: {name} has layout {found} there, and {needed}"
        " in this version. Use one version of mq in all processes of a store: close it in the others, or"
        " install theirs here",
        path=f"{root}/{name}",
        found=found,
        needed=needed,
    )
