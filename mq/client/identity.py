"""The client id of a consumer: unique among all that ever join a group, and readable by a person."""

from __future__ import annotations

import os
import socket
import time
from itertools import count

_numbers = count()


def new_client_id() -> str:
    """As upstream has it: host@pid#time; and a number, since a clock may stand still between two."""
    return f"{socket.gethostname()}@{os.getpid()}#{time.time_ns()}.{next(_numbers)}"
