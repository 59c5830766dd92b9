"""What Spark is told when something cannot be done: its users see only the text, which begins with a code."""

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


class Refusal(MQError):
    """Raised on the driver while it plans, and in a task only for what could not be known before."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(f"[{code}] {text}")
        self.code = code
        self.text = text


def planning(step: Callable[P, R]) -> Callable[P, R]:
    """What a store, or a cluster, has to say against a step on the driver, as a Refusal like all others."""

    @wraps(step)
    def refusing(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return step(*args, **kwargs)
        except Refusal:
            raise
        except (RemotingError, RequestTimeout) as error:
            raise Refusal(
                "MQ_CLUSTER", f"the cluster cannot be read: {type(error).__name__}: {error}"
            ) from None
        except (MQError, OSError) as error:
            raise Refusal("MQ_STORE", f"the store cannot be read: {type(error).__name__}: {error}") from None

    return refusing


def nearest(name: str, names: Iterable[str]) -> str:
    """The name that may have been meant, as the end of a sentence."""
    known = {known.lower(): known for known in sorted(names)}
    close = get_close_matches(name.lower(), known, n=1)
    return f"; did you mean {known[close[0]]}?" if close else ""


def shown(value: object) -> str:
    """What was given, in a length that leaves the rest of the sentence in sight."""
    text = repr(value)
    return text if len(text) <= SHOWN_MAX else text[: SHOWN_MAX - 3] + "..."
