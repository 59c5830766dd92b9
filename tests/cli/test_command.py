"""Exit statuses, errors as one line, and what is said when something is missing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import ENVIRONMENT, ROOT, Run, command
from tests.support.processes.no_threads import without_threads

VERBS = ("topics", "create", "delete", "send", "tail", "query", "show", "verify", "expire", "bench")


def test_help_names_every_verb(bare: Run) -> None:
    answer = bare("--help")
    assert answer.status == 0
    assert [verb for verb in VERBS if f"  {verb} " not in answer.out] == []


def test_the_documents_name_every_verb() -> None:
    page = (ROOT / "docs/cli.md").read_text()
    assert [verb for verb in VERBS if f"| `{verb}" not in page] == []


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("DIR",),
        ("DIR", "no-such-verb"),
        ("DIR", "create"),
        ("DIR", "create", "orders", "--queues", "0"),
        ("DIR", "send", "orders", "body", "--lines"),
        ("DIR", "send", "orders", "body", "--property", "without-equals"),
        ("DIR", "send", "dots.are.not.allowed", "body"),
        ("DIR", "send", "orders", "body", "--property", "bad=\x01"),
        ("DIR", "query", "orders", "key", "--begin", "yesterday-ish"),
        ("DIR", "expire"),
        ("DIR", "expire", "--hours", "-1"),
    ],
)
def test_wrong_usage_is_status_2_and_writes_nothing(
    bare: Run, directory: Path, arguments: tuple[str, ...]
) -> None:
    answer = bare(*(str(directory) if argument == "DIR" else argument for argument in arguments))
    assert answer.status == 2
    assert answer.err.strip() or "Usage" in answer.out
    if directory.exists():
        assert bare(str(directory), "topics", "--json").objects == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("topics",),
        ("delete", "orders"),
        ("tail", "orders", "--no-follow"),
        ("query", "orders", "key"),
        ("show", "0" * 32),
        ("verify",),
    ],
)
def test_only_verbs_that_write_make_the_directory(
    run: Run, directory: Path, arguments: tuple[str, ...]
) -> None:
    answer = run(*arguments)
    assert answer.status == 1
    assert len(answer.err.splitlines()) == 1
    assert not directory.exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("delete", "gone"),
        ("tail", "gone", "--no-follow"),
        ("query", "orders", "gone"),
        ("show", "0" * 32),
    ],
)
def test_what_is_not_there_is_status_1_and_one_line(run: Run, arguments: tuple[str, ...]) -> None:
    assert run("create", "orders").status == 0
    answer = run(*arguments)
    assert answer.status == 1
    assert answer.out == ""
    assert len(answer.err.splitlines()) == 1


def test_a_file_is_no_directory(bare: Run, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"not a store")
    answer = bare(str(file), "send", "orders", "body")
    assert answer.status in {1, 2}
    assert len(answer.err.splitlines()) == 1
    assert file.read_bytes() == b"not a store"


def test_a_cluster_that_is_not_there_is_one_line(bare: Run) -> None:
    answer = bare("rocketmq://127.0.0.1:1", "topics")
    assert answer.status == 1
    assert len(answer.err.splitlines()) == 1
    assert "127.0.0.1:1" in answer.err


def test_json_is_understood_wherever_it_stands(bare: Run, directory: Path) -> None:
    target = str(directory)
    assert bare(target, "create", "orders", "--queues", "2").status == 0
    expected = [{"topic": "orders", "queues": 2, "messages": 0}]
    for arguments in (
        ("--json", target, "topics"),
        (target, "--json", "topics"),
        (target, "topics", "--json"),
    ):
        assert bare(*arguments).objects == expected


def test_topics_counts_the_messages(run: Run) -> None:
    for number in range(3):
        assert run("send", "orders", f"order {number}").status == 0
    assert run("topics", "--json").objects == [{"topic": "orders", "queues": 4, "messages": 3}]
    assert "orders" in run("topics").out


def test_a_deleted_topic_is_gone(run: Run) -> None:
    assert run("create", "orders").status == 0
    assert run("delete", "orders").status == 0
    assert run("topics").out == ""


def test_without_its_extra_the_command_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "click").mkdir()
    (tmp_path / "click/__init__.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'click'\", name='click')"
    )
    environment = {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT)))}
    completed = subprocess.run(
        [sys.executable, "-m", "mq", "--help"], capture_output=True, text=True, env=environment, check=False
    )
    assert completed.returncode == 1
    assert 'pip install "mq[cli]"' in completed.stderr
    assert "Traceback" not in completed.stderr


def test_import_mq_loads_nothing_of_the_command() -> None:
    check = "import sys, mq; sys.exit(bool({'click', 'rich', 'pyarrow', 'mq.cli'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", check], env=ENVIRONMENT, check=False).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (("send", "var/orders", "hello"), "mq var/orders send hello"),
        (("topics", "var/orders"), "mq var/orders topics"),
        (("tail", "var/orders", "orders", "--no-follow"), "mq var/orders tail orders"),
    ],
)
def test_a_verb_before_the_directory_is_told_the_order(
    bare: Run, arguments: tuple[str, ...], shown: str
) -> None:
    answer = bare(*arguments)
    assert answer.status == 2
    assert f"DIR comes first, then the verb: {shown}" in answer.err


def test_an_id_that_is_not_there_is_told_once(run: Run) -> None:
    assert run("create", "orders").status == 0
    answer = run("show", "0" * 32)
    assert answer.status == 1
    assert answer.err.startswith(f"mq: no message has the id '{'0' * 32}'")
    assert answer.err.count("the id") == 1


def test_a_system_without_a_thread_to_spare_is_one_clear_line(run: Run, directory: Path) -> None:
    assert run("send", "orders", "there").status == 0
    for arguments in (
        ("send", "orders", "body"),
        ("consume", "orders", "--group", "readers", "--count", "1"),
        ("tail", "orders", "--no-follow"),
        ("top", "--json", "--count", "1"),
    ):
        completed = subprocess.run(
            without_threads(*command(str(directory), *arguments)),
            capture_output=True,
            text=True,
            env=ENVIRONMENT,
            timeout=60,
            check=False,
        )
        assert (completed.returncode, completed.stdout) == (1, "")
        assert len(completed.stderr.splitlines()) == 1
        assert "cannot be started: raise the limit of threads (ulimit -u" in completed.stderr
    assert run("topics", "--json").objects == [{"topic": "orders", "queues": 4, "messages": 1}]


@pytest.mark.parametrize(
    ("arguments", "closed"),
    [
        (("send", "orders", "one"), "1>&-"),
        (("topics",), "1>&- 2>&-"),
        (("send", "orders", "--lines"), "0<&-"),
        (("verify",), "2>&-"),
    ],
    ids=["no output", "neither", "no input", "no errors"],
)
def test_a_stream_that_was_closed_is_an_empty_one(
    run: Run, directory: Path, arguments: tuple[str, ...], closed: str
) -> None:
    run("create", "orders")
    line = f'"$@" {closed}'
    whole = ["sh", "-c", line, "sh", *command(str(directory), *arguments)]
    done = subprocess.run(whole, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr


@pytest.mark.parametrize(
    "arguments", [("topics",), ("groups",), ("verify",), ("retention",), ("redrive", "g", "--dry-run")]
)
def test_an_empty_directory_is_no_store_and_stays_empty(
    bare: Run, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    """Nothing may be mounted there yet."""
    answer = bare(str(tmp_path), *arguments)
    assert answer.status == 1
    assert "there is no store in this directory" in answer.err
    assert list(tmp_path.iterdir()) == []
