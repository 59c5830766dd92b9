"""What is said of listeners that have been running for long, and where they stand."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from mq.api.results import MessageQueue
from mq.client.engine.delivery import Delivery
from mq.client.engine.hung_listeners import NOT_HUNG, Hung, Running, standing_at
from mq.client.engine.process_queue import MessageRun
from mq.filter.selection import Selection
from mq.message import MessageExt
from tests.support.eventually import eventually
from tests.support.recording_listener import PATIENCE

QUEUES = [MessageQueue("orders", "mq", number) for number in range(3)]
LINE = r"test_hung\.py:\d+ \(threading\.py:\d+\)"


@contextmanager
def listening() -> Iterator[int]:
    """A thread that runs a listener which waits."""
    begun, done = threading.Event(), threading.Event()

    def wait(_: object) -> None:
        begun.set()
        done.wait(PATIENCE)

    delivery = Delivery("orders", Selection.of(), wait, None, False)
    run = MessageRun(0, [MessageExt.__new__(MessageExt)], True, 1)
    thread = threading.Thread(target=delivery.run, args=(run,))
    thread.start()
    try:
        assert begun.wait(PATIENCE)
        ident = thread.ident
        assert ident is not None
        eventually(lambda: bool(re.fullmatch(LINE, standing_at(ident))), lambda: standing_at(ident))
        yield ident
    finally:
        done.set()
        thread.join()


def test_the_line_is_the_listeners_own_with_that_of_the_innermost_call() -> None:
    with listening() as thread:
        assert re.fullmatch(LINE, standing_at(thread))
    assert standing_at(thread) == ""
    assert standing_at(threading.get_ident()) == ""


def test_a_queue_is_told_of_its_oldest_listener_first() -> None:
    with listening() as thread:
        running = [
            Running(QUEUES[1], 50.0, thread, False),
            Running(QUEUES[0], 40.0, thread, True),
            Running(QUEUES[0], 30.0, 0, True),
        ]
        hung = Hung(running, 3, 60.0)
        assert re.fullmatch(r"listener running since \d\d:\d\d:\d\d", hung.of(QUEUES[0]))
        assert hung.of(QUEUES[1]) == hung.of(QUEUES[2]) == hung.of_lost(QUEUES[2]) == ""
        lost = rf"listener running since \d\d:\d\d:\d\d at {LINE}; its messages were sent back"
        assert re.fullmatch(lost, hung.of_lost(QUEUES[1]))
        assert re.fullmatch(r"all 3 threads are in listeners, the longest since [\d:]+", hung.of_all())
    assert NOT_HUNG.of(QUEUES[0]) == ""
