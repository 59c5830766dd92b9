"""The Python of the documents runs: all of a page, in the order in which it is read.

What a page takes for granted, since it is about something else, stands here before the block that needs it. A
`raise` that a page shows as what a listener may say is run like the rest. What needs Java, on the page about
Spark, is marked otherwise, and run by tests of its own.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mq.store.check import problems

ROOT = Path(__file__).parents[2]
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

RUN = """
import ast, asyncio, inspect, json, sys
import mq

async def run(blocks):
    names = {"__name__": "page"}
    for name, block in blocks:
        for statement in ast.parse(block, name).body:
            module = ast.Module([statement], [])
            code = compile(module, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            try:
                result = eval(code, names)
                if inspect.iscoroutine(result):
                    await result
            except mq.Retry:
                if not isinstance(statement, ast.Raise):
                    raise

asyncio.run(run(json.load(sys.stdin)))
"""

# For a page: code by the number of the block that it stands before; the last number is one after the page.
GIVEN = {
    "README.md": {},
    "docs/cluster.md": {0: "import mq", 1: "broker.close()"},
    "docs/coming_from.md": {},
    "docs/groups.md": {},
    "docs/guide.md": {7: "assert newest.msg_id == sent.msg_id and older\nbroker.close()"},
    "docs/consumers.md": {
        0: """
import os, signal
import mq
with mq.open("var/orders") as broker:
    broker.create_topic("orders").send(b"order 1001", tags="paid")
def charge(body):
    print("charged for", body.decode())
    os.kill(os.getpid(), signal.SIGTERM)
""",
        4: "consumer.close()\nbroker.close()",
    },
    "docs/pull-consumer.md": {
        0: """
import mq
broker = mq.open("var/orders")
topic = broker.create_topic("orders")
for _ in topic.queues:  # one for each, as they are sent in turn
    topic.send(b"order 1001", tags="paid")
running = True
def bill(message):
    global running
    running = False
    print("bill at", consumer.position(broker.topic("orders").queues[message.queue_id]))
""",
        1: """
consumer = mq.PullConsumer(broker, "loop")
consumer.subscribe("orders")
def bill(message):
    print("loop", message.tags)
    consumer.close()
""",
        2: 'consumer = mq.PullConsumer(broker, "assigned")',
        3: "queue = broker.topic('orders').queues[0]",
        4: "print('next is', consumer.position(queue))\nbroker.close()",
    },
    "docs/time.md": {
        2: "print('recalled', result.msg_id in broker.recall(result.recall_handle))\nbroker.close()"
    },
    # On free ports, whatever else runs on this machine.
    "docs/serving.md": {
        0: """
import functools, mq.remoting
mq.remoting.serve = functools.partial(mq.remoting.serve, port=0, namesrv_port=0)
""",
        1: "broker.close()",
    },
    "docs/security.md": {
        0: """
import functools
import mq, mq.remoting
broker = mq.open("var/orders")
mq.remoting.serve = functools.partial(mq.remoting.serve, port=0, namesrv_port=0)
""",
        1: "server.close()\nbroker.close()",
    },
    # A master that stays, in the place of one on another machine.
    "docs/standby.md": {
        0: """
import contextlib, logging, mq, mq.remoting
master = mq.open("var/master")
logging.disable(logging.WARNING)  # Another program may have the port for slaves, two below a free one.
server = mq.remoting.serve(master, port=0, namesrv_port=0, ha_port=0)
logging.disable(logging.NOTSET)
mq.remoting.serve = lambda broker, **_: contextlib.nullcontext()
follow = mq.remoting.replicate
patient = {"broker": server.address, "timeout": 60.0}
mq.remoting.replicate = lambda _, directory: follow(server.ha_address, directory, **patient)
""",
        2: "broker.close()\nserver.close()\nmaster.close()",
    },
    "docs/filters.md": {
        0: """
import mq
broker = mq.open("var/orders")
broker.create_topic("orders", 1).send(b"one", tags="paid", properties={"price": "101", "region": "EU"})
queue, offset = broker.topic("orders").queues[0], 0
""",
        1: """
assert len(queue.read(offset, expression="paid || refunded").messages) == 1
assert len(queue.read(offset, sql="price > 101 AND region IN ('EU', 'US')").messages) == 0
broker.close()
""",
    },
    "docs/dedup.md": {},
    "docs/transactions.md": {
        2: """
print("of one that is not there:", exact_check(message).name)
database.execute("UPDATE outcome SET state = 'committed'")
print("of one that is:", exact_check(message).name)
""",
        3: "database.close()",
    },
    "docs/logging.md": {
        0: "import sys\nsys.stderr = sys.stdout",
        2: """
import mq
with mq.open("var/orders") as broker, mq.PushConsumer(broker, "audit") as consumer:
    consumer.subscribe("orders", listener=print)
    consumer.start()
""",
    },
    "docs/asyncio.md": {
        0: """
async def bill(message):
    print("bill for", message.body.decode())
    main_task.cancel()
""",
        1: """
import asyncio
main_task = asyncio.create_task(main())
await asyncio.wait([main_task])
assert main_task.cancelled()
class bank:
    async def charge(*_):
        print("charged")
        asyncio.create_task(consumer.close())
broker = mq.open("var/shop")
broker.topic("orders").send(b"order 1002")
consumer = mq.aio.Consumer(broker, "charging")
""",
        2: "broker.close()",
    },
}

# What a page prints, wherever among the rest; consumers are in no order among themselves.
SAYS = {
    "README.md": ["received hello, world plain"],
    "docs/cluster.md": [],
    "docs/coming_from.md": ["mail to ann@example.org"],
    "docs/groups.md": ["bill for order 1001", "ship order 1002 paid", "expensive: 250.5", "report "],
    "docs/guide.md": ["0 paid b'...'"],
    "docs/consumers.md": ["charged for order 1001"],
    "docs/pull-consumer.md": ["bill at 1", "loop paid", "next is 0"],
    "docs/time.md": ["recalled True"],
    "docs/serving.md": ["127.0.0.1:"],
    "docs/security.md": [],
    "docs/standby.md": [],
    "docs/filters.md": [],
    "docs/transactions.md": [
        "ordered O1 book",
        "ordered O2 lamp",
        "of one that is not there: ROLLBACK",
        "of one that is: COMMIT",
    ],
    "docs/logging.md": [
        "INFO mq.groups: group audit: ",
        "joined, clustering, subscribed to orders by TAG '*'",
    ],
    "docs/dedup.md": ["the same one: True", "charged for [b'order 1001']"],
    "docs/asyncio.md": ["bill for order 1001", "charged"],
}


def blocks_of(page: str) -> list[str]:
    return PYTHON.findall((ROOT / page).read_text())


def test_every_page_with_python_is_run() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    with_python = {str(page.relative_to(ROOT)) for page in pages if PYTHON.search(page.read_text())}
    assert with_python == GIVEN.keys() == SAYS.keys()


@pytest.mark.parametrize("page", SAYS)
def test_what_a_page_shows_is_what_happens(page: str, tmp_path: Path) -> None:
    given = GIVEN[page]
    shown: list[tuple[str, str]] = []
    blocks = blocks_of(page)
    for number, block in enumerate([*blocks, ""]):
        shown.append((f"given before block {number}", given.get(number, "")))
        shown.append((f"{page}, block {number}", block))
    assert max(given, default=0) <= len(blocks)
    completed = subprocess.run(
        [sys.executable, "-W", "error", "-c", RUN],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        input=json.dumps(shown),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (completed.returncode, completed.stderr) == (0, "")
    assert [said for said in SAYS[page] if said not in completed.stdout] == []
    if page == "docs/cluster.md":
        return  # Nothing is connected before the first call, and no directory is made.
    directories = list((tmp_path / "var").iterdir())
    assert directories
    assert [str(problem) for directory in directories for problem in problems(directory)] == []
