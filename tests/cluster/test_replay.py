"""`./run cluster`: the replay example on real brokers, one of which is killed in mid-run."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cluster.shared import ROOT

pytestmark = [pytest.mark.oracle, pytest.mark.rounds, pytest.mark.timeout(900)]

EVENT_COUNT = 1000


def test_every_event_is_accounted_for_whatever_happens_to_a_broker(tmp_path: Path) -> None:
    chance = random.Random(11)
    recorded = tmp_path / "events.jsonl"
    with recorded.open("w") as lines:
        for number in range(EVENT_COUNT):
            module = chance.choice(["core", "docs", "root", "tests"])
            event = {
                "commit": f"{number // 7:012x}",
                "time": 1_700_000_000 + number,
                "module": module,
                "path": f"{module}/file-{chance.randrange(200)}.py",
                "ext": "py",
                "added": chance.choice([None, 0, 1, 2, 30]),
                "deleted": chance.choice([None, 0, 5]),
            }
            lines.write(json.dumps(event) + "\n")
    completed = subprocess.run(
        [sys.executable, "-m", "tests.support.cluster", "--input", str(recorded)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert completed.returncode == 0, completed.stdout[-3000:] + completed.stderr[-3000:]
    assert "broker b is killed" in completed.stderr
    assert "broker b is back" in completed.stderr
    assert "FAILS" not in completed.stdout
    assert "Every event is accounted for" in completed.stdout
