"""A commit log of small files, written here byte by byte, for tests of what is derived from one."""

import struct
import zlib
from pathlib import Path

from mq.store.native import check, ffi, lib

LOG_FILE_SIZE = 4096


def record(
    log_offset: int, store_time: int, topic: str, properties: dict[str, str], sys_flag: int = 0
) -> bytes:
    """A message as it lies in the log."""
    text = b"".join(f"{name}\x01{value}\x02".encode() for name, value in properties.items())
    name, body = topic.encode(), b"body"
    head = struct.pack(">iiiiqqi", -626843481, zlib.crc32(body) & 0x7FFFFFFF, 0, 0, 0, log_offset, sys_flag)
    head += struct.pack(">q8sq8siqi", 1, b"born", store_time, b"store", 0, 0, len(body))
    tail = body + bytes([len(name)]) + name + struct.pack(">h", len(text)) + text
    return struct.pack(">i", 4 + len(head) + len(tail)) + head + tail


class Log:
    """A commit log of small files, written here, read by the code under test."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.end = 0
        (root / "commitlog").mkdir(parents=True)
        control = ffi.new("mq_control **")
        check(lib.mq_control_open(bytes(root / "control"), bytes(16), 1, control))
        self.control = ffi.gc(control[0], lib.mq_control_close)
        lib.mq_control_set(self.control, lib.MQ_FILE_SIZE, LOG_FILE_SIZE)
        lib.mq_control_set(self.control, lib.MQ_QUEUE_FILE_SIZE, 400)
        log = ffi.new("mq_log **")
        check(lib.mq_log_open(self.control, bytes(root), 0, 0, log))
        self.handle = ffi.gc(log[0], lib.mq_log_close)

    def append(self, store_time: int, topic: str, properties: dict[str, str], sys_flag: int = 0) -> int:
        size = len(record(0, 0, topic, properties))
        left = LOG_FILE_SIZE - self.end % LOG_FILE_SIZE
        if size + 8 > left:
            self._write(struct.pack(">ii", left, -875286124))
            self.end += left - 8
        at = self.end
        self._write(record(at, store_time, topic, properties, sys_flag))
        return at

    def _write(self, data: bytes) -> None:
        path = self.root / "commitlog" / f"{self.end // LOG_FILE_SIZE * LOG_FILE_SIZE:020}"
        if not path.exists():
            path.write_bytes(bytes(LOG_FILE_SIZE))
        with path.open("r+b") as file:
            file.seek(self.end % LOG_FILE_SIZE)
            file.write(data)
        self.end += len(data)
        lib.mq_control_set(self.control, lib.MQ_LOG_END, self.end)
