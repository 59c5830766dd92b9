"""Each recipe of docs/recipes.md runs, with the library that it is for."""

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest

import mq

ROOT = Path(__file__).parents[2]
FILE = re.compile(r"^```py\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILES = dict(FILE.findall((ROOT / "docs/recipes.md").read_text()))
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(ROOT),
    "PYTHONUNBUFFERED": "1",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
}


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A directory with all files of the page."""
    for name, code in FILES.items():
        (tmp_path / name).write_text(code)
    return tmp_path


def run(recipe: Path, *arguments: str) -> str:
    completed = subprocess.run(
        [sys.executable, *arguments],
        cwd=recipe,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
        check=False,
    )
    assert completed.returncode == 0, completed.stdout
    return completed.stdout


def bodies(directory: Path) -> list[bytes]:
    with mq.open(directory, create=False) as broker:
        queues = broker.topic("orders").queues
        return sorted(message.body for queue in queues for message in queue.read(0).messages)


def test_all_code_of_the_page_is_run_here() -> None:
    assert len(FILES) == (ROOT / "docs/recipes.md").read_text().count("```py\n")
    used = Path(__file__).read_text() + "".join(FILES.values())
    assert [name for name in FILES if not re.search(rf"\b{name.removesuffix('.py')}\b", used)] == []


def test_the_pytest_recipe_works(recipe: Path) -> None:
    assert "1 passed" in run(recipe, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_billing.py")
    assert (recipe / "conftest.py").exists()


def hear_signals(server: int, count: int) -> bool:
    """Whether so many workers have their own handlers. Until then a worker loses what it is sent,
    and gunicorn kills it after 30 s."""
    caught = []
    for each in Path(f"/proc/{server}/task/{server}/children").read_text().split():
        with suppress(OSError):  # It ended.
            caught.append(re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{each}/status").read_text()))
    own = [each for each in caught if each and int(each[1], 16) >> (signal.SIGABRT - 1) & 1]
    return len(own) == count


def test_the_gunicorn_and_fork_recipe_works(recipe: Path) -> None:
    # The workers read gunicorn.conf.py of the directory.
    server = subprocess.Popen(
        [sys.executable, "-m", "gunicorn", "--bind", "127.0.0.1:0", "shop:app"],
        cwd=recipe,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert server.stdout is not None
        said = ""
        for line in server.stdout:
            said += line
            if found := re.search(r"Listening at: (http://\S+)", line):
                break
        else:
            pytest.fail(said)
        for number in range(10):
            request = urllib.request.Request(found[1], b"order %d" % number, method="POST")
            with urllib.request.urlopen(request, timeout=60) as answer:
                assert len(answer.read()) == 32
        deadline = time.monotonic() + 60
        while not hear_signals(server.pid, 2):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        server.send_signal(signal.SIGTERM)
        said += server.communicate(timeout=60)[0]
    finally:
        server.kill()
        server.communicate()
    assert server.returncode == 0, said
    assert "Traceback" not in said
    assert bodies(recipe / "var/shop") == sorted(b"order %d" % number for number in range(10))


DRIVER = """
import time
from fastapi.testclient import TestClient
import app

with TestClient(app.app) as client:
    for number in range(3):
        assert len(client.post("/orders", content=b"order %d" % number).json()["msg_id"]) == 32
    broker = app.mq.open("var/shop")
    deadline = time.monotonic() + 60
    while broker.group("billing").lag("orders"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    broker.close()
"""


def test_the_fastapi_recipe_works(recipe: Path) -> None:
    (recipe / "driver.py").write_text(DRIVER)
    said = run(recipe, "driver.py")
    assert sorted(re.findall(r"bill for (.*)", said)) == ["order 0", "order 1", "order 2"]


def test_the_sqlalchemy_outbox_recipe_works(recipe: Path) -> None:
    said = run(recipe, "orders.py")
    assert said.splitlines() == ["not placed: IntegrityError", "sent: order 1001"]


CHECKS = """
import time
from sqlalchemy.orm import Session
import mq, outbox, orders

with mq.open("var/checks", flush="sync") as broker, Session(orders.engine) as session:
    with mq.TransactionProducer(broker, "shop", orders.check_order) as producer:
        half = producer.begin(mq.Message("orders", b"open"))
        class Half: msg_id = half.message_id
        print("nobody committed:", orders.check_order(Half).name, orders.check_order(Half).name)
        half.rollback()
        producer.begin = lambda message: half  # A transaction that is slower than its check.
        try:
            with outbox.together(producer, mq.Message("orders", b"late"), session):
                print("the body runs")
        except Exception as error:
            print("too late:", type(error).__name__)
"""


def test_a_check_of_the_sqlalchemy_outbox_is_final(recipe: Path) -> None:
    (recipe / "checks.py").write_text(CHECKS)
    said = run(recipe, "checks.py").splitlines()
    assert said[-2:] == ["nobody committed: ROLLBACK ROLLBACK", "too late: IntegrityError"]


def test_the_cron_recipe_works(recipe: Path) -> None:
    with mq.open(recipe / "var/shop") as broker:
        for number in range(5):
            broker.create_topic("orders").send(b"order %d" % number)
    said = run(recipe, "bill.py")
    assert sorted(said.splitlines()) == [f"bill for order {number}" for number in range(5)]
    assert run(recipe, "bill.py") == ""
