"""Many threads at one bound function, and callers of odd types."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import mq


class Number:
    """What counts as a whole number without being an int, as those of numpy do."""

    def __init__(self, value: int) -> None:
        self._value = value

    def __index__(self) -> int:
        return self._value

    __int__ = __index__


class Subclass(mq.Message):
    pass


def raised(call: Callable[[], object]) -> type[BaseException] | None:
    try:
        call()
    except Exception as error:  # noqa: BLE001 - compared with another
        return type(error)
    return None


ENDS = (mq.BrokerClosed, mq.TopicNotFound)


def run_all(calls: Sequence[Callable[[], object]], until: Callable[[], object]) -> list[BaseException]:
    """Call each over and over in a thread of its own until it raises one of ENDS, and `until` meanwhile."""
    wrong: list[BaseException] = []
    started = threading.Barrier(len(calls) + 1)

    def work(call: Callable[[], object]) -> None:
        started.wait()
        try:
            while True:
                call()
        except ENDS:
            pass
        except BaseException as error:  # noqa: BLE001 - told by the test
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    started.wait()
    until()
    for thread in threads:
        thread.join()
    return wrong
