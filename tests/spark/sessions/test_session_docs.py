"""What the page about Spark shows is run: all its Python in one go, in the session of all tests.

Its stores lie where the test's do, and what a block takes for granted stands here before it.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import mq
from mq.store.check import problems
from tests.support.started_queries import begun

PAGE = Path(__file__).parents[3] / "docs" / "spark.md"
BLOCK = re.compile(r"^```py\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PLACE = "var/"

# For what a block begins with, what is given before it, and what is done after it.
BEFORE = {
    "frame.write": """
frame = orders.select("body")
stream = spark.readStream.format("mq").option("topic", "orders").load("var/orders")
""",
}
AFTER = {
    "import mq.spark": "query.processAllAvailable(); send(); query.processAllAvailable(); query.stop()",
    "def write(": "query.processAllAvailable(); query.stop()",
}


def of(codes: dict[str, str], block: str) -> str:
    return "\n".join(code for begin, code in codes.items() if block.startswith(begin))


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_what_the_page_shows_runs(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.sql.streaming import DataStreamWriter

    start = DataStreamWriter.start
    monkeypatch.setattr(
        DataStreamWriter, "start", lambda *given, **options: begun(partial(start, *given, **options))
    )
    blocks = BLOCK.findall(PAGE.read_text())
    for begin in [*BEFORE, *AFTER]:
        assert any(block.startswith(begin) for block in blocks), f"the page has no block that begins: {begin}"
    store = tmp_path / "var" / "orders"
    with mq.open(store) as broker:
        for topic in ("orders", "paid"):
            broker.create_topic(topic, 2)

    def send() -> None:
        with mq.open(store) as broker:
            for number in range(4):
                broker.topic("orders").send(b"order %d" % number, tags=("paid", "open")[number % 2])

    names: dict[str, Any] = {"send": send}
    for number, block in enumerate(blocks):
        whole = "\n".join([of(BEFORE, block), block, of(AFTER, block)])
        code = compile(whole.replace(PLACE, f"{tmp_path}/{PLACE}"), f"{PAGE.name}, block {number}", "exec")
        exec(code, names)
    for query in spark.streams.active:
        query.processAllAvailable()
        query.stop()

    with mq.open(store, read_only=True) as broker:

        def bodies(topic: str) -> list[bytes]:
            found = (queue.read(0).messages for queue in broker.topic(topic).queues)
            return sorted(message.body for messages in found for message in messages)

        assert bodies("paid") == [b"order 0", b"order 2"]
        assert bodies("counts") == [b'{"tags":"open","count":2}', b'{"tags":"paid","count":2}']
    assert [str(problem) for problem in problems(store)] == []
