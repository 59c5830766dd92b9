"""The formats of the bodies of requests and answers."""

from __future__ import annotations

from enum import Enum
from typing import Final

from mq.remoting.codec.json_body import JsonBody

__all__ = [
    "BATCH",
    "BYTES",
    "MESSAGE",
    "NOTHING",
    "RECORDS",
    "TEXT_PROPERTIES",
    "TIMER_CHECK",
    "BodyKind",
    "Raw",
]


class Raw(Enum):
    """Bodies that are not JSON."""

    NOTHING = "none"
    BYTES = "the body of one message, perhaps compressed"
    BATCH = "messages (batch.py)"
    RECORDS = "records as in the commit log, one after the other (records.py)"
    TEXT_PROPERTIES = "Java properties (text_properties.py)"
    TIMER_CHECK = "as in the file timercheck (mq/store/timer/checkpoint.py)"
    REGISTRATION = "JSON, or compressed as the header says (registration.py)"


BodyKind = Raw | type[JsonBody]  # A class is JSON, read and written by json_body.py.

NOTHING: Final = Raw.NOTHING
MESSAGE: Final = Raw.BYTES
BYTES: Final = Raw.BYTES
BATCH: Final = Raw.BATCH
RECORDS: Final = Raw.RECORDS
TEXT_PROPERTIES: Final = Raw.TEXT_PROPERTIES
TIMER_CHECK: Final = Raw.TIMER_CHECK
