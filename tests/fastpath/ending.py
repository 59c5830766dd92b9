"""Programs that end with brokers open: by a fork, or with threads in the middle of calls."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

__all__ = ["ends_well"]

ROOT = Path(__file__).parents[2]


def ends_well(directory: Path, code: str) -> None:
    """Have a process of its own run the code, which ends with status 0 and says nothing on stderr."""
    done = subprocess.run(
        # Newer interpreters warn of any fork beside threads.
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code, directory],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert (done.returncode, done.stderr) == (0, "")
