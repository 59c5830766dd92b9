"""`retention`, `settings`, `expire --dry-run`, and what `groups` warns of: nothing goes in silence."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import mq
from mq.store.shared.leader_lock import is_taken
from tests.cli.conftest import ENVIRONMENT, Run, Start
from tests.support import assigned
from tests.support.insides import flushed_end, leader_pid, log_end
from tests.support.store.small_store import fill, log_files, open_small

COUNT = 120


@pytest.fixture
def filled(directory: Path) -> Path:
    """A closed store whose messages are 100 h old, ten of them read by a group."""
    with open_small(directory, retention_hours=1000) as broker:
        broker.create_topic("A", 1)
        fill(broker, "A", COUNT)
        (queue,) = broker.readable("A")
        assigned.commit(broker, "billing", queue, 10)
        assigned.commit(broker, "audit", queue, COUNT)
    moment = time.time() - 100 * 3600
    for file in log_files(directory):
        os.utime(file, (moment, moment))
    return directory


def test_the_retention_is_shown_and_changed(run: Run, filled: Path) -> None:
    assert run("retention").out == "messages are kept for 1000 h\n"
    assert run("retention", "50", "--disk-ratio-max", "0.9").status == 0
    [facts] = run("retention", "--json").objects
    assert facts == {"retention_hours": 50, "disk_ratio_max": 0.9, "held": None, "away": None}
    assert "fuller than 90%" in run("retention").out
    for wrong in ("-1", "never"):
        assert run("retention", "--", wrong).status == 2
    assert run("retention", "--disk-ratio-max", "2").status == 2


def test_settings_are_shown_and_changed(run: Run, filled: Path) -> None:
    [facts] = run("settings", "--json").objects
    assert facts["retention_hours"] == 1000
    answer = run("settings", "transaction_check_max=7", "message_delay_level=1s 2s")
    assert "transaction_check_max       7\n" in answer.out
    assert run("settings", "--json").objects == [
        {**facts, "transaction_check_max": 7, "message_delay_level": "1s 2s"}
    ]
    for wrong in ("shoe_size=43", "retention_hours", "retention_hours=-1", "retention_hours=soon", "held="):
        answer = run("settings", wrong)
        assert (answer.status, answer.out) == (2, "")
        assert answer.err


def test_a_dry_run_shows_what_would_be_deleted_and_which_groups_have_not_read_it(
    run: Run, filled: Path
) -> None:
    assert run("expire", "--dry-run", "--json").objects == [
        {"files": 0, "bytes": 0, "queues": [], "waiting": []}
    ]
    files = log_files(filled)
    [facts] = run("expire", "--dry-run", "--hours", "50", "--json").objects
    [queue] = facts.pop("queues")
    assert facts.pop("waiting") == []
    assert facts == {"files": len(files) - 1, "bytes": 4096 * (len(files) - 1)}
    last = queue["last"]
    assert queue == {"topic": "A", "queue_id": 0, "first": 0, "last": last, "unread": {"billing": last - 9}}
    out = run("expire", "--dry-run", "--hours", "50").out
    assert f"{len(files) - 1} files of the commit log" in out
    assert out.splitlines()[-1].split() == ["A/0", "0", f"{last}", "billing", f"({last - 9})"]
    assert run("expire", "--dry-run", "--within", "901", "--json").objects[0]["files"] == len(files) - 1
    assert log_files(filled) == files
    assert run("expire", "--hours", "50", "--within", "5").status == 2
    assert run("expire", "--hours", "50", "--json").objects == [{"deleted_files": len(files) - 1}]


def test_groups_warn_before_messages_go_that_a_group_has_not_read(run: Run, filled: Path) -> None:
    assert "deleted" not in run("groups").out
    run("retention", "110")
    listed = {facts["group"]: facts["expiring"] for facts in run("groups", "--json").objects}
    assert listed["audit"] == 0
    assert 0 < listed["billing"] < COUNT - 10
    warning = (
        f"{listed['billing']} messages that billing has not read will be deleted within 24 h: see"
        " mq DIR expire --dry-run --within 24\n"
    )
    assert run("groups").out.endswith(warning)
    assert run("groups", "billing").out.endswith(warning)
    assert run("groups", "billing", "--json").objects[0]["expiring"] == listed["billing"]
    assert "deleted" not in run("groups", "audit").out


def test_a_copy_waits_to_be_confirmed(bare: Run, filled: Path, tmp_path: Path) -> None:
    shutil.copytree(filled, tmp_path / "copy")
    copy = str(tmp_path / "copy")
    for verb in (("retention",), ("groups",), ("expire", "--dry-run")):
        answer = bare(copy, *verb)
        assert answer.status == 0
        assert "is a copy" in answer.err
        assert "mq DIR retention --confirm" in answer.err
    assert "copy" in bare(copy, "retention", "--json").objects[0]["held"]
    assert bare(copy, "retention", "--confirm").err == ""
    assert bare(copy, "groups").err == ""


def test_a_command_that_makes_a_store_settles_nothing(run: Run, directory: Path) -> None:
    assert run("create", "orders").status == 0
    with mq.open(directory, retention_hours=1000) as broker:
        assert broker.retention.hours == 1000
        assert broker.retention.held == ""


# Duties are the application's.


@pytest.fixture
def topic(directory: Path) -> None:
    with mq.open(directory) as broker:
        broker.create_topic("orders", 1).send(b"one")


@pytest.mark.parametrize(
    "verb",
    [("tail", "orders"), ("consume", "orders", "--group", "g"), ("--json", "top", "--interval", "0.05")],
    ids=lambda verb: verb[-1] if verb[0] == "--json" else verb[0],
)
def test_a_command_left_running_does_no_duties_and_hinders_no_leader(
    start: Start, directory: Path, topic: None, verb: tuple[str, ...]
) -> None:
    command = start(*verb)
    assert command.stdout is not None
    command.stdout.readline()  # It is at work.
    assert not is_taken(directory)
    with mq.open(directory) as broker:
        deadline = time.monotonic() + 60
        while leader_pid(broker) != os.getpid():
            assert time.monotonic() < deadline, "the application does not get the duties"
            time.sleep(0.01)
        assert command.poll() is None


def test_what_a_command_sends_is_on_disk_without_a_leader(
    start: Start, run: Run, directory: Path, topic: None
) -> None:
    with mq.open(directory, duties=False) as bystander:  # So that nothing is closed for good meanwhile.

        def flushed() -> bool:
            return flushed_end(bystander) == log_end(bystander)

        assert run("send", "orders", "two").status == 0
        assert flushed()
        (message,) = bystander.topic("orders").queues[0].read(0, count_max=1).messages
        assigned.send_back(bystander, message, "billing", delay_level=-1)
        assert not flushed()
        assert run("redrive", "billing").out == "1 message sent back\n"
        assert flushed()
        sender = start("send", "orders", "--lines", stdin=subprocess.PIPE)
        assert sender.stdin is not None
        end = log_end(bystander)
        sender.stdin.write(b"three\n")
        sender.stdin.flush()
        deadline = time.monotonic() + 60
        while log_end(bystander) == end or not flushed():
            assert time.monotonic() < deadline, "a line that was sent is not flushed"
            time.sleep(0.01)
        sender.stdin.write(b"four\n")
        sender.stdin.close()
        assert sender.wait(60) == 0
        assert flushed()


def test_what_consume_has_committed_is_kept(run: Run, directory: Path, topic: None) -> None:
    with mq.open(directory, duties=False) as bystander:
        assert run("consume", "orders", "--group", "g", "--wait", "0").status == 0
        (queue,) = bystander.readable("orders")
        assert assigned.committed(bystander, "g", queue) == 1
    # The one that closes last has it in config/consumerOffset.json, whatever it did meanwhile.
    shutil.rmtree(directory / "mq" / "groups")
    with mq.open(directory) as broker:
        assert assigned.committed(broker, "g", queue) == 1


def test_a_recall_needs_no_application(run: Run, topic: None) -> None:
    [sent] = run("send", "orders", "later", "--delay-ms", "3600000", "--json").objects
    assert run("recall", sent["recall_handle"]).status == 0


def test_without_logging_setup_the_library_logs_nothing(directory: Path) -> None:
    """What is unusual is a line on standard error, and nothing else is."""
    code = f"import mq\nfor _ in 1, 2: mq.open({str(directory)!r}, retention_hours=5).close()"
    done = subprocess.run(
        [sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("", "")
    code = f"import mq\nmq.open({str(directory)!r}, retention_hours=6).close()"
    done = subprocess.run(
        [sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    assert "retention_hours=6 was asked for" in done.stderr
