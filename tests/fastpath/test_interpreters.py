"""A second interpreter in the process, as mod_wsgi makes one for each application, imports mq and goes away.

What the C module holds is of one interpreter. The second one is refused, and the first one goes on.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PREAMBLE = """
import sys, tempfile
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters

def elsewhere():
    other = interpreters.create()
    try:
        failure = interpreters.run_string(other, "import mq")
    except Exception as error:
        failure = error
    interpreters.destroy(other)
    return str(failure)

def send():
    import mq
    with tempfile.TemporaryDirectory() as path, mq.open(path) as broker:
        print(broker.create_topic("t").send(b"x").status.name)
"""


def run(program: str) -> list[str]:
    command = [sys.executable, "-c", PREAMBLE + program]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("program", ["send(); print(elsewhere()); send()", "print(elsewhere()); send()"])
def test_a_second_interpreter_is_refused_and_the_first_goes_on(program: str) -> None:
    lines = run(program)
    assert lines.count("SEND_OK") == len(lines) - 1
    (refusal,) = [line for line in lines if line != "SEND_OK"]
    assert "main interpreter" in refusal
    assert "WSGIApplicationGroup" in refusal


def test_what_is_imported_again_works() -> None:
    forget = 'for name in [n for n in sys.modules if n.split(".")[0] == "mq"]: del sys.modules[name]'
    assert run(f"send()\n{forget}\nsend()") == ["SEND_OK", "SEND_OK"]
