"""Mirrors of a queue with messages in them."""

from __future__ import annotations

from mq.client.engine.process_queue import MessageRun, ProcessQueue
from mq.message import MessageExt
from tests.support.records import encode_record


def message(offset: int, size: int = 3) -> MessageExt:
    return MessageExt(encode_record("orders", 0, offset, offset * 1000, b"x" * size, b""), "mq")


def messages(*offsets: int) -> list[MessageExt]:
    return [message(offset) for offset in offsets]


def filled(begin: int, end: int) -> ProcessQueue:
    cache = ProcessQueue(begin)
    cache.put(messages(*range(begin, end)), end)
    return cache


def offsets(run: MessageRun) -> list[int]:
    return [each.queue_offset for each in run.messages]
