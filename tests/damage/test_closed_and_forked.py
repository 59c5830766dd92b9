"""A broker used when it is closed, in a child that was forked, or being closed by another thread.

One named error each, whatever is called: never a crash, never data that is not there, never an endless wait.
"""

import os
from pathlib import Path

import pytest

from mq.store.check import problems
from tests.damage import using
from tests.support.processes.children import call

THREAD_COUNT = 8
ROUNDS = int(os.environ.get("MQ_CLOSING_ROUNDS", "24"))


def test_after_close_everything_is_refused(tmp_path: Path) -> None:
    before, after = call(using.use_after_close, str(tmp_path / "store"))
    assert before == dict.fromkeys(before, "")
    assert after == dict.fromkeys(before, "BrokerClosed")
    assert list(problems(tmp_path / "store")) == []


def test_in_a_forked_child_everything_is_refused(tmp_path: Path) -> None:
    told, closing, before, after = call(using.use_in_forked_child, str(tmp_path / "store"))
    assert told == dict.fromkeys(told, "ForkedBroker")
    assert closing == ""
    # One from the broker that the child opened itself, one from the parent, none from the child's copy.
    assert after == before + 2
    assert list(problems(tmp_path / "store")) == []


@pytest.mark.rounds
@pytest.mark.parametrize(
    "kinds",
    [
        ["send"],
        ["send_batch"],
        ["topic.send", "create_topic"],
        ["read"],
        ["read by tag", "append"],
        ["wait"],
        ["wait", "send"],
        ["read_arrow"],
        ["max_offset", "min_offset", "offset_at"],
        ["query", "send"],
        ["message"],
        ["publishable", "readable", "topics", "settings"],
        ["flush", "send"],
        ["expire", "flush"],
    ],
    ids=" and ".join,
)
def test_closing_while_other_threads_use_it(tmp_path: Path, kinds: list[str]) -> None:
    ended = call(using.close_while_used, str(tmp_path), kinds, ROUNDS)
    assert ended.keys() == {"BrokerClosed"}
    for store in tmp_path.iterdir():
        assert list(problems(store)) == []


def test_many_threads_send_at_once(tmp_path: Path) -> None:
    results = call(using.send_from_threads, str(tmp_path / "store"), THREAD_COUNT, 200)
    # The first message of the store was sent before.
    assert sorted(offset for offset, _ in results) == list(range(1, THREAD_COUNT * 200 + 1))
    assert len({msg_id for _, msg_id in results}) == len(results)
    assert list(problems(tmp_path / "store")) == []
