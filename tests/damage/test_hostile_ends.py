"""Words of a control file that say how far the log has blocks, which processes that died left damaged.

They are not behind a checksum: a store that was not closed is attached to as it is. What they say is not
believed: a block that is not there would be a signal on a full disk, and a file that is not made an error.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from mq.broker.check import problems
from mq.store.native import lib
from mq.store.shared.control import Control
from tests.damage.crafting import EXTREME
from tests.damage.harm import Snapshot
from tests.support.insides import control_of, was_recovered
from tests.support.processes.children import Child, hear, say
from tests.support.store.small_store import LOG_FILE_SIZE, contents, fill, open_small

COUNT = 30
WORDS = ("MQ_ALLOCATED_END", "MQ_RESERVED_END")


def fill_and_wait(root: str) -> None:
    """Until it is killed."""
    broker = open_small(Path(root), duties=False)
    broker.create_topic("A", 1)
    fill(broker, "A", COUNT)
    say("ready")
    hear()


@pytest.mark.parametrize("word", WORDS)
def test_what_a_dead_process_says_of_its_blocks_is_not_believed(quick_path: Path, word: str) -> None:
    root, values = quick_path / "store", [*EXTREME[::2]]
    values += [LOG_FILE_SIZE * files + more for files, more in ((1, 0), (2, 7), (3, 0), (5, 7))]
    with Child(fill_and_wait, str(root)) as child:
        assert child.hear() == "ready"
        child.kill()
    snapshot = Snapshot(root, quick_path / "aside")
    for value in values:
        snapshot.restore()
        damaged = Control(root / "mq" / "control", create=False)
        damaged.set(getattr(lib, word), value)
        damaged.close()
        with open_small(root, duties=False) as broker:
            assert not was_recovered(broker)
            control = control_of(broker)
            assert control.get(lib.MQ_ALLOCATED_END) <= control.get(lib.MQ_LOG_END) + 2 * LOG_FILE_SIZE
            fill(broker, "A", COUNT, prefix="later")
            bodies = [body for _, body in contents(broker)["A", 0][2]]
            wanted = [b"%s %d" % (name, at) for name in (b"message", b"later") for at in range(COUNT)]
            assert bodies == wanted, f"{word} = {value}"
        assert list(problems(root)) == [], f"{word} = {value}"
