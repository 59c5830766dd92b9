"""The directory of a store: made, or found not to be one, before anything is touched.

It must be local, since processes of several machines cannot share memory; writable, since even a reader
takes locks; and either empty, or hold what RocketMQ or mq put there.
"""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mq.errors import NotPermitted, StoreCorrupted
from mq.fastpath import open_guard
from mq.names import is_system_topic
from mq.store.directory.owner import make_directory

if TYPE_CHECKING:
    import tempfile

__all__ = [
    "AUTO_MEMBER",
    "BEGIN_MEMBER",
    "holds_store",
    "is_listed",
    "listed_queues",
    "prepare",
    "private_copy",
    "size_of",
    "sync_file",
    "sync_names",
    "topics_begin",
]

# Of a topic in topics.json: where the log ended when it was made. A broker ignores it.
BEGIN_MEMBER = "mqBeginLogOffset"
# Of a topic in topics.json that a send made, and nobody asked for since. A broker ignores it.
AUTO_MEMBER = "mqAutoCreated"

# Names that RocketMQ or we put into a root; a directory that holds others and none of these is not a store.
KNOWN = frozenset(
    {"commitlog", "consumequeue", "batchconsumequeue", "consumequeue_ext", "index", "config", "checkpoint"}
    | {"abort", "abort.bak", "lock", "mq", "timerwheel", "timerlog", "compaction", "kvStore", "transaction"}
)
REMOTE_FILE_SYSTEMS = frozenset(
    ["nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "glusterfs", "fuse.sshfs"]
)


def prepare(root: Path, *, create: bool, read_only: bool) -> None:
    """Make the root, or find out early and in words why it will not do."""
    if not root.exists():
        if not create or read_only:
            raise FileNotFoundError(
                f"{root} does not exist, and create=False or read_only=True was asked for"
            )
        make_directory(root, parents=True)
        sync_names(root.parent)
    if not root.is_dir():
        raise NotADirectoryError(f"{root} is not a directory: a store is one")
    names = {path.name for path in root.iterdir()} - {"lost+found"}  # A file system of its own has that.
    if names and not names & KNOWN:
        raise StoreCorrupted(
            f"{root} holds other files ({', '.join(sorted(names)[:3])}, …) and no store:"
            " name an empty or a new directory",
            path=str(root),
        )
    kind = file_system(root)
    if kind in REMOTE_FILE_SYSTEMS:
        raise NotPermitted(
            f"{root} lies on a network file system ({kind}), where processes of several machines cannot share"
            " memory: use a local directory"
        )
    for path in (root, root / "mq"):
        if path.exists() and not os.access(path, os.R_OK | os.W_OK | os.X_OK):
            if os.statvfs(path).f_flag & os.ST_RDONLY:
                raise NotPermitted(
                    f"{path} lies on a read-only file system, and even a reader takes locks in the directory:"
                    " mount it for writing, or open a copy"
                )
            owner = path.stat().st_uid
            whose = (
                f"belongs to user id {owner}"
                if owner != os.geteuid()
                else f"has mode {stat.filemode(path.stat().st_mode)}"
            )
            raise NotPermitted(
                f"{path} {whose} and cannot be written by user id {os.geteuid()}: change it, or use another"
            )
    made = [root / name for name in ("mq", "commitlog", "consumequeue") if not (root / name).exists()]
    for path in made:
        make_directory(path)
    if made:
        sync_names(root)


def private_copy(root: Path) -> tempfile.TemporaryDirectory[str]:
    """A directory in which queues can be mended without a change to the store: the log is the store's."""
    import tempfile  # with what it needs it is not for every program

    directory = tempfile.TemporaryDirectory(prefix="mq-reader-")
    private = Path(directory.name)
    make_directory(private / "mq")
    for kind in ("commitlog", "consumequeue_ext"):
        (private / kind).symlink_to(root / kind)
    if (root / "mq" / "losses.json").is_file():
        shutil.copy2(root / "mq" / "losses.json", private / "mq" / "losses.json")
    if (root / "consumequeue").is_dir():
        shutil.copytree(root / "consumequeue", private / "consumequeue")
    return directory


def sync_names(directory: Path) -> None:
    """Have the names in a directory on disk; where that is not for us to do, the store's own syncs must
    do."""
    with suppress(PermissionError):
        _sync(directory, os.O_RDONLY | os.O_DIRECTORY)


def sync_file(path: Path) -> None:
    """Have a file on disk, with where its blocks are."""
    _sync(path, os.O_RDWR | os.O_NOFOLLOW)


def _sync(path: Path, flags: int) -> None:
    with open_guard(os.fsencode(path), flags, False) as fd:
        os.fsync(fd)


def file_system(path: Path) -> str:
    """The type of the file system that holds a path, "" if the machine does not say."""
    device = path.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        left, _, right = line.partition(" - ")
        if left.split()[2] == wanted:
            return right.split()[0]
    return ""


def listed_queues(table: dict[str, Any] | None) -> set[tuple[str, int]]:
    """(topic, queue id) of every queue that may have messages: RocketMQ's own topics are mostly empty."""
    found: set[tuple[str, int]] = set()
    for name, settings in (table or {}).items():
        try:
            count = int(settings.get("writeQueueNums", 0))
        except (AttributeError, ValueError, TypeError, OverflowError):
            continue
        if not is_system_topic(name):
            found.update((name, queue_id) for queue_id in range(min(count, 65_536)))
    return found


def size_of(path: Path) -> int | None:
    """In bytes; None for a file that is not there, or is gone since its name was read: too old to be kept, or
    of a deleted topic."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def holds_store(directory: Path) -> bool:
    """Whether a directory has any part of a store: one without is probably a wrong path."""
    return any((directory / name).exists() for name in ("commitlog", "config", "mq"))


def is_listed(table: dict[str, Any] | None, topic: str, log_offset: int | None = None) -> bool:
    """Whether a table names the topic (of a record at log_offset); True if there is no table."""
    if table is None:
        return True
    begin = topics_begin(table).get(topic, (0, 0))[1]
    return topic in table and (log_offset is None or log_offset >= begin)


def topics_begin(table: dict[str, Any] | None) -> dict[str, tuple[int, int]]:
    """Of topics that were made when the log already had records: how many queues, and where the log ended."""
    found = {}
    for name, settings in (table or {}).items():
        try:
            begin = int(settings.get(BEGIN_MEMBER, 0))
            counts = int(settings.get("readQueueNums", 0)), int(settings.get("writeQueueNums", 0))
        except (AttributeError, ValueError, TypeError, OverflowError):
            continue
        if begin > 0:
            found[name] = min(max(counts), 65_536), begin
    return found
