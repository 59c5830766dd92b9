"""The examples, as an editor checks them: nothing in them is of an unknown type."""

from __future__ import annotations

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
