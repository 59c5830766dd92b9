"""Children begin together, answer, fail and die as the cases expect of them."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.speed.processes import ChildFailed, in_child, killed_while, together, total_rate

# Peers leave threads of their own behind in this process; what is forked here never touches them.
pytestmark = [
    pytest.mark.rounds,
    pytest.mark.usefixtures("peers"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]


def test_work_is_done_in_another_process() -> None:
    assert in_child(os.getpid) != os.getpid()


def test_an_error_in_a_child_is_raised_here() -> None:
    def fail() -> None:
        raise ValueError("no such store")

    with pytest.raises(ChildFailed, match="ValueError: no such store"):
        in_child(fail)


def test_a_child_that_dies_is_an_error() -> None:
    with pytest.raises(ChildFailed, match="died"):
        in_child(lambda: os._exit(3))


def test_children_begin_together_and_answer_in_order() -> None:
    def job(number: int) -> Callable[[Callable[[], object]], tuple[int, float, float]]:
        def run(ready: Callable[[], object]) -> tuple[int, float, float]:
            before = time.monotonic()
            ready()
            return number, before, time.monotonic()

        return run

    results = together([job(number) for number in range(3)])
    assert [number for number, _, _ in results] == [0, 1, 2]
    assert max(before for _, before, _ in results) <= min(after for _, _, after in results)


@pytest.mark.parametrize("order", [1, -1])
def test_one_that_fails_does_not_leave_the_others_waiting(order: int) -> None:
    def fail(_: Callable[[], object]) -> None:
        raise ValueError("early")

    with pytest.raises(ChildFailed, match="early"):
        together([fail, lambda ready: ready()][::order])


def test_a_killed_child_gets_no_chance_to_clean_up(tmp_path: Path) -> None:
    def work(ready: Callable[[], object]) -> None:
        try:
            ready()
            time.sleep(60)
        finally:
            (tmp_path / "cleaned").touch()

    killed_while(work, 0.0)
    assert not (tmp_path / "cleaned").exists()


def test_one_that_ends_before_its_kill_is_an_error() -> None:
    with pytest.raises(ChildFailed, match="by itself"):
        killed_while(lambda _: None, 0.0)


def test_total_rate_counts_every_thread_of_every_process(tmp_path: Path) -> None:
    class Sender:
        def __init__(self) -> None:
            self.sent = (tmp_path / f"{os.getpid()}").open("a")

        def send_each(self, count: int) -> int:
            self.sent.write("." * count)
            time.sleep(0.001)
            return count

        def close(self) -> None:
            self.sent.close()

    seconds = 0.05
    found = total_rate(Sender, processes=2, threads=3, seconds=seconds, chunk_count=4)
    files = list(tmp_path.iterdir())
    # One send to warm up in each process does not count, and no process ends early.
    sent = sum(len(path.read_text()) for path in files) - 2
    assert len(files) == 2
    assert 0 < found <= sent / seconds


def test_a_sender_halted_at_its_start_sends_all_the_same() -> None:
    """Where its time is over before it looks at the clock again."""

    class Sender:
        def send_each(self, count: int) -> int:
            return count

        def close(self) -> None: ...

    assert total_rate(Sender, processes=1, threads=1, seconds=0.0, chunk_count=4) > 0


def test_an_error_in_a_thread_is_not_lost() -> None:
    class Sender:
        def __init__(self) -> None:
            self.left = 2

        def send_each(self, _: int) -> int:
            self.left -= 1
            if self.left < 0:
                raise ValueError("full")
            return 1

        def close(self) -> None: ...

    with pytest.raises(ChildFailed, match="full"):
        total_rate(Sender, processes=1, threads=2, seconds=60.0, chunk_count=1)
