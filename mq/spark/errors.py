"""The errors of the source and the sink. Users of Spark see only the text, which begins with a code."""

from __future__ import annotations

from difflib import get_close_matches
from functools import wraps
from typing import TYPE_CHECKING, Literal

from mq.errors import MQError, RemotingError, RequestTimeout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from typing_extensions import ParamSpec, TypeVar

    P = ParamSpec("P")
    R = TypeVar("R")

SHOWN_MAX = 200

Code = Literal[
    "MQ_OPTION",
    "MQ_SCHEMA",
    "MQ_TOPIC",
    "MQ_STORE",
    "MQ_STORE_NOT_LOCAL",
    "MQ_CLUSTER",
    "MQ_DATA_LOSS",
    "MQ_SPARK_TOO_OLD",
    "MQ_TXN_MISMATCH",
    "MQ_ROW",
    "MQ_STAGING_LOST",
    "MQ_STAGING_LOCKED",
]


class SparkError(MQError):
    """An error for the user of Spark. Raised on the driver if possible; in a task only for what the driver
    could not check."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(f"[{code}] {text}")
        self.code = code
        self.text = text


def raises_spark_errors(step: Callable[P, R]) -> Callable[P, R]:
    """Decorator: turns errors of the store or the cluster into a SparkError."""

    @wraps(step)
    def translated(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return step(*args, **kwargs)
        except SparkError:
            raise
        except (RemotingError, RequestTimeout) as error:
            raise SparkError(
                "MQ_CLUSTER", f"the cluster cannot be read: {type(error).__name__}: {error}"
            ) from None
        except (MQError, OSError) as error:
            raise SparkError(
                "MQ_STORE", f"the store cannot be read: {type(error).__name__}: {error}"
            ) from None

    return translated


def nearest(name: str, names: Iterable[str]) -> str:
    """The end of a sentence: the known name that is closest to a misspelt one, or nothing."""
    known = {known.lower(): known for known in sorted(names)}
    close = get_close_matches(name.lower(), known, n=1)
    return f"; did you mean {known[close[0]]}?" if close else ""


def short(value: object) -> str:
    """The repr of a value, truncated to SHOWN_MAX characters."""
    text = repr(value)
    return text if len(text) <= SHOWN_MAX else text[: SHOWN_MAX - 3] + "..."
