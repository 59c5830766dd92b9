"""The Python of the documents runs: all of a page, in the order in which it is read."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mq.store.check import problems

ROOT = Path(__file__).parents[2]
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

# What a page prints, wherever among the rest; its consumers are in no order among themselves.
SAYS = {
    "README.md": ["received hello, world plain"],
    "docs/groups.md": ["bill for order 1001", "ship order 1002 paid", "expensive: 250.5", "report "],
}


@pytest.mark.parametrize("page", SAYS)
def test_what_a_page_shows_is_what_happens(page: str, tmp_path: Path) -> None:
    blocks = PYTHON.findall((ROOT / page).read_text())
    assert blocks
    completed = subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n\n".join(blocks)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (completed.returncode, completed.stderr) == (0, "")
    assert [said for said in SAYS[page] if said not in completed.stdout] == []
    [directory] = (tmp_path / "var").iterdir()
    assert [str(problem) for problem in problems(directory)] == []
