"""Every example runs, says what it promises, and leaves a directory without a problem."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mq.store.check import problems
from tests.examples.texts import EXAMPLES, ROOT, SAYS

RECORDED = ROOT.parent / "shared/data/rocketmq-changes.jsonl.gz"

# Where a second run has to go on from what the first one left in a database.
AGAIN = {
    "transaction.py": r"rolled back: deposit D5 is negative\n"
    r"messages: D1 100 D3 300 D4 100 D6 300\nrows: D1 100 D3 300 D4 100 D6 300\n",
}


def run(cwd: Path, *arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-W", "error", *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_every_example_is_run_here() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {*SAYS, "replay.py"}


@pytest.mark.parametrize("name", SAYS)
def test_an_example_does_what_it_says(name: str, tmp_path: Path) -> None:
    completed = run(tmp_path, EXAMPLES / name)
    assert completed.stderr == ""
    assert re.fullmatch(SAYS[name], completed.stdout), completed.stdout
    if name in AGAIN:
        completed = run(tmp_path, EXAMPLES / name)
        assert completed.stderr == ""
        assert re.fullmatch(AGAIN[name], completed.stdout), completed.stdout
    [directory] = filter(Path.is_dir, (tmp_path / "var").iterdir())
    assert [str(problem) for problem in problems(directory)] == []


def test_the_readme_shows_hello() -> None:
    code = (EXAMPLES / "hello.py").read_text().split('"""\n\n', 1)[1]
    assert f"```python\n{code}```" in (ROOT / "README.md").read_text()


def replay(tmp_path: Path, *arguments: str | Path) -> str:
    directory = tmp_path / "store"
    completed = run(tmp_path, EXAMPLES / "replay.py", "--directory", directory, *arguments)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert "FAILS" not in completed.stdout
    assert [str(problem) for problem in problems(directory)] == []
    return completed.stdout


def history(tmp_path: Path) -> Path:
    """A checkout with names that git would quote, a rename, a binary file, a deletion and an empty commit."""
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    settings = tmp_path / "gitconfig"
    settings.touch()
    identity = {"GIT_CONFIG_GLOBAL": str(settings), "GIT_CONFIG_NOSYSTEM": "1"}
    for who in ("AUTHOR", "COMMITTER"):
        identity |= {f"GIT_{who}_NAME": "someone", f"GIT_{who}_EMAIL": "someone@example.org"}

    def git(*arguments: str) -> None:
        subprocess.run(["git", "-C", checkout, *arguments], env={**os.environ, **identity}, check=True)

    def commit(files: dict[str, bytes]) -> None:
        for name, content in files.items():
            (checkout / name).parent.mkdir(exist_ok=True)
            (checkout / name).write_bytes(content)
        git("add", "-A")
        git("commit", "-q", "--allow-empty", "-m", "a change")

    git("init", "-q")
    commit({"a file.py": b"1\n2\n", "dir/tab\there": b"x\n", "dir/ünïcode.md": b"x\n"})
    commit({"image.png": bytes(range(256)), "a file.py": b"1\n2\n3\n"})
    git("mv", "a file.py", "dir/moved.py")
    commit({})
    commit({})
    git("rm", "-q", "image.png")
    commit({})
    return checkout


def test_replay_accounts_for_the_history_of_a_checkout(tmp_path: Path) -> None:
    out = replay(tmp_path, "--git", history(tmp_path))
    # Three files, two changes, a rename as two, a deletion; 2+1+1, +1, 3 added again; 3 deleted.
    assert "holds in-order: its 8 events were consumed, and no others" in out
    assert "holds in-order: 8 lines added, 3 deleted" in out
    # Of these the file that was moved into a folder is large enough.
    assert "holds selected: its 1 events were consumed, and no others" in out
    assert out.count("killed │") == out.count("joined │") == 2


def test_replay_says_when_there_is_no_history(tmp_path: Path) -> None:
    completed = run(tmp_path, EXAMPLES / "replay.py", "--git", tmp_path)
    assert completed.returncode == 1
    assert "--input FILE" in completed.stderr
    assert "Traceback" not in completed.stderr


def test_replay_into_a_directory_twice_counts_only_what_is_new(tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    with events.open("w") as lines:
        for seq in range(2000):
            event = {"seq": seq, "commit": f"{seq // 5:012x}", "time": seq, "module": f"m{seq % 7}"}
            event |= {"path": f"m{seq % 7}/f{seq % 31}.py", "ext": "py", "added": seq % 13, "deleted": None}
            lines.write(json.dumps(event) + "\n")
    for _ in range(2):
        out = replay(tmp_path, "--input", events)
        assert "holds in-order: its 2,000 events were consumed, and no others" in out
        wanted = sum(seq % 13 >= 2 for seq in range(2000))
        assert f"holds selected: its {wanted:,} events were consumed, and no others" in out


@pytest.mark.skipif(not RECORDED.exists(), reason="the recorded history is not beside this checkout")
def test_replay_accounts_for_the_recorded_history(tmp_path: Path) -> None:
    out = replay(tmp_path, "--input", RECORDED)
    assert "holds in-order: its 49,490 events were consumed, and no others" in out
    assert "holds in-order: 1,568,724 lines added" in out
    assert "holds selected: its 31,738 events were consumed, and no others" in out
