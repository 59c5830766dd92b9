"""What the child does whose store is damaged and then verified: every file under mq/ is there."""

from __future__ import annotations

import random
import tempfile
from itertools import chain
from pathlib import Path

import mq
from mq.broker.check import problems
from mq.sink_ledger import TOPIC, Entry
from mq.spark.sink import check as sinks
from tests.damage import harm
from tests.damage.known import SIZES
from tests.support import assigned
from tests.support.appending import append_one
from tests.support.insides import set_dedup_buckets
from tests.support.processes.children import say

ARROW = b"ARROW1\0\0" + bytes(200) + b"ARROW1"


def make(root: str) -> None:
    """A closed store that a group consumed from, that was sent to and handled under keys, and that a sink of
    Spark wrote half an epoch to."""
    with mq.open(root, **SIZES) as broker:
        topic = broker.create_topic("orders", 1)
        set_dedup_buckets(broker, 8)
        producer, handled = mq.Producer(broker, dedup_window=3600), mq.Once(broker, "billing", size=20)
        for number in range(30):
            producer.send(mq.Message("orders", b"body"), dedup_key=f"key-{number}")
            with handled(f"key-{number}"):
                pass
        topic.send(b"later", delay_level=18)
        assigned.commit(broker, "billing", topic.queues[0].message_queue, 3)
        broker.create_topic(TOPIC, 1)
        body = Entry("app", "query", 1, 0, 5, ("1/a.arrow", "1/b.arrow")).encode()
        append_one(broker, TOPIC, 0, mq.Message(TOPIC, body), body, 0)
    for name in ("1/a.arrow", "1/b.arrow", "0/dead.arrow", "lock", "unfinished"):
        path = Path(root) / "mq" / "spark" / "app" / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_bytes(ARROW if name.endswith(".arrow") else b"")


def look(root: Path) -> list[str]:
    """All that is told of a store; each of it in words, and on its own line."""
    found = list(chain(problems(root), sinks.problems(root), sinks.leftovers(root)))
    for text in found:
        assert isinstance(text, str)
        assert len(text) > 20
    return found


def damage(root: str, kind: str, first_seed: int, count: int) -> None:
    """Damage a file, look, put it back."""
    path = Path(root)
    before = look(path)
    aside = Path(tempfile.mkdtemp(prefix="mq-aside-", dir=path.parent))
    snapshot = harm.Snapshot(path, aside / "links")
    for seed in range(first_seed, first_seed + count):
        random_ = random.Random(seed)
        name = random_.choice([name for name in snapshot.files if name.startswith(("mq/", "config/"))])
        file = snapshot.files[name]
        if kind == "flip":
            done = harm.flip(random_, path / name, len(file.data), file.size)
        else:
            done = harm.unmake(random_, path, name, aside / "outside")
        say(f"seed {seed}: {name}: {done}")
        look(path)
        snapshot.restore()
    assert look(path) == before
