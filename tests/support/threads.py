"""The threads of this process, by the names that mq gives them."""

from __future__ import annotations

import threading
from collections.abc import Collection


def threads_named(name: str, *, besides: Collection[threading.Thread] = ()) -> list[threading.Thread]:
    """Those that run, besides those that ran before."""
    return [thread for thread in threading.enumerate() if thread.name == name and thread not in besides]
