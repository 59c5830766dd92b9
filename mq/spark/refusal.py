"""What Spark is told when something cannot be done: its users see only the text, which begins with a code."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Literal

from mq.errors import MQError

if TYPE_CHECKING:
    from collections.abc import Iterable

Code = Literal[
    "MQ_OPTION",
    "MQ_SCHEMA",
    "MQ_TOPIC",
    "MQ_STORE",
    "MQ_STORE_NOT_LOCAL",
    "MQ_DATA_LOSS",
    "MQ_SPARK_TOO_OLD",
    "MQ_TXN_MISMATCH",
    "MQ_ROW",
    "MQ_STAGING_LOST",
]


class Refusal(MQError):
    """Raised on the driver while it plans, and in a task only for what could not be known before."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(f"[{code}] {text}")
        self.code = code


def nearest(name: str, names: Iterable[str]) -> str:
    """The name that may have been meant, as the end of a sentence."""
    known = {known.lower(): known for known in sorted(names)}
    close = get_close_matches(name.lower(), known, n=1)
    return f"; did you mean {known[close[0]]}?" if close else ""
