"""A forked child closes what it inherited, whatever a thread of its parent was in the middle of."""

from __future__ import annotations

from pathlib import Path

import pytest

from mq.broker.check import problems
from tests.support.processes.children import Child
from tests.txn import forking


@pytest.mark.parametrize("which", ["asked", "looks into the table"])
def test_a_child_closes_while_a_thread_of_the_parent_is_at_work(tmp_path: Path, which: str) -> None:
    with Child(forking.close_in_child, str(tmp_path / "store"), which) as child:
        assert child.hear() == "committed"
        assert child.result() == 0
    assert list(problems(tmp_path / "store")) == []
