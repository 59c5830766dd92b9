"""What an editor says: nothing of the examples, and something of each choice that is mistyped."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYRIGHT = Path(sys.executable).with_name("basedpyright")


def test_a_strict_type_checker_has_nothing_to_say_of_the_examples() -> None:
    completed = subprocess.run(
        [PYRIGHT, "--project", ROOT, "--pythonpath", sys.executable],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 0, completed.stdout
    assert completed.stdout.startswith("0 errors, 0 warnings"), completed.stdout


CHOICES = """
import mq
from mq import aio

mq.open("d", flush="sync")
mq.open("d", flush="sink")  # wrong
mq.open("d", flush_intervall=1.0)  # wrong
mq.open("rocketmq://h:1", time_out=1.0)  # wrong
broker = mq.open("d")
mq.PullConsumer(broker, "g", consume_from="latest")
mq.PullConsumer(broker, "g", consume_from="newest")  # wrong
mq.PullConsumer(broker, "g", allocate="circle")
mq.PullConsumer(broker, "g", allocate="circles")  # wrong
mq.PushConsumer(broker, "g", allocate="consistent-hash")
mq.PushConsumer(broker, "g", allocate="consistent_hash")  # wrong
mq.PushConsumer(broker, "g", allocate=lambda group, client_id, queues, client_ids: queues)
aio.Consumer(broker, "g", allocate="averagely")
aio.Consumer(broker, "g", allocate="average")  # wrong
"""


def test_a_mistyped_choice_fails_the_type_checker(tmp_path: Path) -> None:
    (tmp_path / "choices.py").write_text(CHOICES)
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [str(ROOT)]}))
    completed = subprocess.run(
        [PYRIGHT, "--project", tmp_path, "--pythonpath", sys.executable, "--outputjson", "--level", "error"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    said = json.loads(completed.stdout)["generalDiagnostics"]
    wrong = {number for number, line in enumerate(CHOICES.splitlines()) if line.endswith("# wrong")}
    assert {each["range"]["start"]["line"] for each in said} == wrong, completed.stdout
