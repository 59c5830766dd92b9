"""Completion in the shell: the script that --completion prints, and what it is answered when it asks."""

import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import ENVIRONMENT, Run, command


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_the_script_of_a_shell(bare: Run, shell: str) -> None:
    answer = bare("--completion", shell)
    assert answer.status == 0
    assert f"_MQ_COMPLETE={shell}_complete" in answer.out


def asked(words: str, cwd: Path) -> list[str]:
    """What is offered for the last of the words, as bash asks for it."""
    parts = words.split(" ")
    completed = subprocess.run(
        command(),
        cwd=cwd,
        env={
            **ENVIRONMENT,
            "_MQ_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(parts) - 1),
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert completed.stderr == ""
    return completed.stdout.splitlines()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("mq va", ["dir,va"]),
        ("mq var/orders to", ["plain,topics", "plain,top"]),
        ("mq var/orders retention --c", ["plain,--confirm"]),
        ("mq var/orders create orders --perm r", ["plain,r", "plain,rw"]),
    ],
)
def test_directories_verbs_and_options_are_completed(tmp_path: Path, words: str, offered: list[str]) -> None:
    assert sorted(asked(words, tmp_path)) == sorted(offered)
    assert list(tmp_path.iterdir()) == []


def test_bash_reads_the_script(bare: Run) -> None:
    script = bare("--completion", "bash").out
    completed = subprocess.run(
        ["bash", "-c", script + "\ncomplete -p mq"], capture_output=True, text=True, timeout=60, check=True
    )
    assert "_mq_completion" in completed.stdout
