"""The commit log: every message of every topic, in one order.

The only file that holds messages. Consume queues and the index are derived from it; throw them away and
recovery builds them again.

On disk: commitlog/<offset of the first byte, 20 digits>, files of equal size. A record never crosses files:
eight bytes or more are always left over, and hold a BLANK (size of the rest, its magic) once the file is
full.

Record, integers big-endian; n is what its own size word says:

    offset  size  field
         0     4  total_size       of the whole record
         4     4  magic            V1 (topic size in 1 byte), V2 (in 2) or BLANK
         8     4  body_crc         CRC-32 of the body as stored, sign bit cleared
        12     4  queue_id
        16     4  flag             the user's
        20     8  queue_offset     place in its queue
        28     8  log_offset       position in this log: a record knows its place
        36     4  sys_flag         compressed, transaction, IPv6 hosts, compression
        40     8  born_time        ms, the producer's clock
        48     8  born_host        address and port (20 bytes with IPv6; all below move by 12)
        56     8  store_time       ms, taken under the append lock: never falls along the log
        64     8  store_host       address and port (20 bytes with IPv6)
        72     4  reconsume_times
        76     8  prepared_offset  of the half message that this one commits
        84     4  body_size
        88     n  body
               1  topic_size       2 with V2
               n  topic
               2  properties_size
               n  properties       name 01 value 02 …, the last one __CRC32# over all bytes before it

A record is whole when magic is known, all sizes add up, log_offset is its own, and the CRC fits: that of
the __CRC32# property, which every record of ours carries and which covers the whole of it, else body_crc.
The log ends before the first record that is not whole, unless whole ones that were on disk follow it: then
that one is damaged, reading it raises StoreCorrupted, and the others stay.

RocketMQ: store/CommitLog.java, common/message/MessageDecoder.java.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["is_segment_name", "segment_files"]

NAME_SIZE = 20


def segment_files(directory: Path, misplaced: list[Path] | None = None) -> list[Path]:
    """The files of a log or a queue, oldest first: those whose name is 20 digits. misplaced gets what has
    such a name and is no file."""
    names = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if not is_segment_name(entry.name):
                    continue
                if entry.is_file():
                    names.append(entry.name)
                elif misplaced is not None:
                    misplaced.append(directory / entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [directory / name for name in sorted(names)]


def is_segment_name(name: str) -> bool:
    """Whether a file of a log or a queue may be called so. Other scripts have digits, too."""
    return len(name) == NAME_SIZE and name.isascii() and name.isdigit()
