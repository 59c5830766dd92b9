"""`groups`, `reset` and `top --json`: consumer groups, and why their queues make no progress."""

import fcntl
import json
import os
import pty
import re
import select
import struct
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import mq
from mq.api.group import Claim, Membership, Subscription
from mq.cli.command import run as command
from tests.cli.conftest import Run, Start
from tests.support import assigned

COUNT = 40
STYLING = re.compile(rb"\x1b\[[0-9;?]*m")  # colours, between letters too


@pytest.fixture
def broker(directory: Path) -> Iterator[mq.LocalBroker]:
    with mq.open(directory) as broker:
        topic = broker.create_topic("orders", 4)
        for number in range(COUNT):
            topic.send(f"order {number}".encode(), shard_key=number % 8)
        yield broker


@contextmanager
def member(broker: mq.Broker, client_id: str = "me", group: str = "billing") -> Iterator[Membership]:
    joined = broker.consumer_groups.join(
        group,
        client_id=client_id,
        model="clustering",
        consume_type="push",
        ordered=False,
        subscriptions=[Subscription("orders", "paid")],
    )
    yield joined
    joined.leave()


def claim(membership: Membership, broker: mq.Broker, queue_id: int) -> Claim:
    claimed = membership.claim(broker.readable("orders")[queue_id])
    assert claimed is not None
    return claimed


def test_no_groups_is_no_output(run: Run, broker: mq.LocalBroker) -> None:
    for options in ((), ("--json",)):
        answer = run("groups", *options)
        assert (answer.status, answer.out, answer.err) == (0, "", "")


def test_the_list_has_members_and_lag_of_each_topic(run: Run, broker: mq.LocalBroker) -> None:
    with member(broker), member(broker, "you"), member(broker, "she", "audit"):
        audit, billing = run("groups", "--json").objects
        assert audit["group"] == "audit"
        assert billing == {
            "group": "billing",
            "members": 2,
            "model": "clustering",
            "ordered": False,
            "topics": {"orders": COUNT},
            "lag": COUNT,
            "dead_letters": 0,
            "expiring": 0,
            "retrying": {},
        }
        heading, *rows = run("groups").out.splitlines()
        assert heading.split() == ["group", "members", "model", "topic", "lag", "retry"]
        assert rows[1].split() == ["billing", "2", "clustering", "orders", f"{COUNT}", "0"]


def test_a_group_without_members_is_still_listed(run: Run, broker: mq.LocalBroker) -> None:
    with member(broker):
        pass
    [billing] = run("groups", "--json").objects
    assert (billing["members"], billing["model"], billing["lag"]) == (0, None, COUNT)
    assert "nobody" in run("groups").out


def test_a_group_shows_the_owner_of_each_queue_and_why_it_makes_no_progress(
    run: Run, broker: mq.LocalBroker
) -> None:
    with member(broker) as me:
        queue = claim(me, broker, 0)
        queue.commit(2)
        queue.set_status("paused")
        [billing] = run("groups", "billing", "--json").objects
        [joined] = billing["members"]
        assert (joined["client_id"], joined["pid"]) == ("me", os.getpid())
        assert joined["subscriptions"] == [{"topic": "orders", "expression": "paid", "kind": "TAG"}]
        states = {state["queue_id"]: state for state in billing["queues"] if state["topic"] == "orders"}
        assert states[0]["owner"]["pid"] == os.getpid()
        assert (states[0]["committed"], states[0]["reason"]) == (2, "paused")
        assert states[0]["lag"] == states[0]["end"] - 2
        assert states[0]["oldest_unconsumed_ms"] > 0
        assert states[1]["owner"] is None
        assert states[1]["reason"] != ""
        assert billing["lag"] == COUNT - 2

        out = run("groups", "billing").out
        assert f"billing: 1 member (clustering), lag {COUNT - 2}" in out
        [line] = [line for line in out.splitlines() if line.startswith("orders/0")]
        assert f"pid {os.getpid()}" in line
        assert line.endswith("paused")


@pytest.mark.parametrize("verb", [("groups", "billing"), ("reset", "billing", "orders")])
def test_a_group_that_never_was_is_not_found(run: Run, broker: mq.LocalBroker, verb: tuple[str, ...]) -> None:
    answer = run(*verb)
    assert answer.status == 1
    assert "no group billing" in answer.err
    assert broker.groups() == []


def test_a_name_that_no_group_can_have_is_wrong_usage(run: Run, broker: mq.LocalBroker) -> None:
    assert run("groups", "a.b").status == 2
    assert run("reset", "a.b", "orders").status == 2


def test_reset_moves_a_group_in_either_direction(run: Run, broker: mq.LocalBroker) -> None:
    group = broker.group("billing")
    with member(broker):
        pass
    answer = run("reset", "billing", "orders", "--to", "latest")
    assert answer.status == 0
    assert group.lag("orders") == 0
    moved = run("reset", "billing", "orders", "--json").objects
    assert [line["committed"] for line in moved] == [0, 0, 0, 0]
    assert sum(line["before"] for line in moved) == COUNT
    assert group.lag("orders") == COUNT
    run("reset", "billing", "orders", "--to", "1h")
    assert group.lag("orders") == COUNT
    run("reset", "billing", "orders", "--to", "1ms")
    assert group.lag("orders") == 0


def test_reset_of_a_broadcasting_group_says_which_consumers_it_affects(
    run: Run, broker: mq.LocalBroker
) -> None:
    with mq.PushConsumer(broker, "caches", model="broadcasting") as consumer:
        consumer.subscribe("orders", listener=lambda _: None)
        consumer.start()
    assert "each of its consumers continues from there" in run("reset", "caches", "orders").out
    assert run("reset", "caches", "orders", "--json").objects == [
        {"group": "caches", "topic": "orders", "model": "broadcasting"}
    ]


def test_reset_reaches_a_member_that_is_at_work(run: Run, broker: mq.LocalBroker) -> None:
    with member(broker) as me:
        queue = claim(me, broker, 0)
        assert queue.commit(3)
        seen = me.version()
        assert run("reset", "billing", "orders").status == 0
        assert me.version() != seen
        assert not queue.commit(4)
        assert queue.committed() == 0
        assert queue.commit(4)


def test_reset_of_a_group_to_come_has_to_be_asked_for(run: Run, broker: mq.LocalBroker) -> None:
    assert run("reset", "billing", "orders", "--to", "latest", "--create").status == 0
    assert broker.group("billing").lag("orders") == 0


def dead_letter(broker: mq.LocalBroker, *, count: int = 1) -> None:
    (queue,) = [queue for queue in broker.topic("orders").queues if queue.queue_id == 0]
    for message in queue.read(0, count_max=count).messages:
        assigned.send_back(broker, message, "billing", max_reconsume_times=0)


def test_delete_forgets_a_group(run: Run, broker: mq.LocalBroker) -> None:
    told = {"deleted": "billing", "retrying": {}, "dead_letters": 0}
    for options, expected in ((("--json",), [told]), ((), [])):
        with member(broker):
            pass
        answer = run("groups", "billing", "--delete", *options)
        assert (answer.status, answer.objects, answer.err) == (0, expected, "")
        assert broker.groups() == []
    answer = run("groups", "billing", "--delete")
    assert (answer.status, answer.out, answer.err) == (1, "", "mq: there is no group billing\n")


def test_delete_says_what_went_and_what_stays(run: Run, broker: mq.LocalBroker) -> None:
    with member(broker):
        pass
    dead_letter(broker, count=2)
    (message,) = broker.topic("orders").queues[0].read(0, count_max=1).messages
    assigned.send_back(broker, message, "billing")
    gone, stays = run("groups", "billing", "--delete").out.splitlines()
    assert gone == "1 message that waited for another attempt went with it"
    assert stays == "2 dead letters left; mq DIR delete %DLQ%billing deletes them"


def test_delete_takes_dead_letters_along_if_asked_to(run: Run, broker: mq.LocalBroker) -> None:
    with member(broker):
        pass
    dead_letter(broker)
    answer = run("groups", "billing", "--delete", "--dead-letters")
    assert (answer.status, answer.out) == (0, "")
    assert broker.topics() == ["orders"]


def test_delete_of_a_group_with_members_names_them(run: Run, broker: mq.LocalBroker) -> None:
    with member(broker):
        answer = run("groups", "billing", "--delete")
        assert (answer.status, answer.out) == (1, "")
        assert f"while it has live consumers: me (pid {os.getpid()} on " in answer.err
        assert broker.groups() == ["billing"]


def test_delete_goes_on_where_it_was_cut_short(run: Run, broker: mq.LocalBroker) -> None:
    broker.create_topic("%RETRY%billing", 1)
    assert run("groups", "billing", "--delete").status == 0
    assert broker.topics() == ["orders"]


@pytest.mark.parametrize("words", [("--delete",), ("billing", "--dead-letters"), ("a.b", "--delete")])
def test_wrong_options_of_delete_are_rejected(
    run: Run, broker: mq.LocalBroker, words: tuple[str, ...]
) -> None:
    assert run("groups", *words).status == 2


@pytest.mark.parametrize(
    ("arguments", "status"), [(("billing", "nope"), 1), (("billing", "orders", "--to", "soon"), 2)]
)
def test_wrong_options_of_reset_are_rejected(
    run: Run, broker: mq.LocalBroker, arguments: tuple[str, ...], status: int
) -> None:
    with member(broker):
        assert run("reset", *arguments).status == status


def test_top_prints_a_line_for_each_look(run: Run, broker: mq.LocalBroker) -> None:
    with member(broker) as me:
        claim(me, broker, 0).set_status("paused")
        first, second = run("--json", "top", "--interval", "0.05", "--count", "2").objects
    [topic] = [topic for topic in first["topics"] if topic["topic"] == "orders"]
    assert topic == {"topic": "orders", "queues": 4, "messages": COUNT, "sent_per_s": None}
    [group] = [group for group in second["groups"] if group["topic"] == "orders"]
    assert (group["group"], group["members"], group["lag"], group["consumed_per_s"]) == (
        "billing",
        1,
        COUNT,
        0,
    )
    assert "paused" in group["reasons"]
    mine, nobodys = second["members"]
    assert (mine["member"]["pid"], mine["queues"], mine["reasons"]) == (os.getpid(), 1, ["paused"])
    assert (nobodys["member"], nobodys["queues"]) == (None, 3)


def test_top_fills_a_terminal_until_q_is_pressed(start: Start, broker: mq.LocalBroker) -> None:
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 150, 0, 0))
    with member(broker), os.fdopen(ours, "r+b", buffering=0) as terminal:
        screen = start("top", stdin=its, stdout=its, stderr=its)
        os.close(its)
        shown = b""
        until = time.monotonic() + 120
        while not all(name in STYLING.sub(b"", shown) for name in (b"orders", b"billing", b"subscribes to")):
            assert time.monotonic() < until, shown
            if select.select([terminal], [], [], 1.0)[0]:
                shown += terminal.read(4096)
        terminal.write(b"q")
        with suppress(OSError):  # The other end is closed.
            while terminal.read(4096):
                pass
        assert screen.wait(60) == 0


def test_top_without_its_library_says_which(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], broker: mq.LocalBroker
) -> None:
    monkeypatch.setitem(sys.modules, "textual", None)
    for module in ("textual.app", "mq.cli.screen.dashboard", "mq.cli.screen.table"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    assert command([str(broker.path), "top"]) == 1
    assert "pip install" in capsys.readouterr().err


def test_top_wants_a_terminal(run: Run, broker: mq.LocalBroker) -> None:
    answer = run("top")
    assert answer.status == 2
    assert "--json" in answer.err


def test_output_for_machines_is_ascii_on_lines(run: Run, broker: mq.LocalBroker) -> None:
    with member(broker):
        for verb in (("groups",), ("groups", "billing"), ("reset", "billing", "orders")):
            out = run(*verb, "--json").out
            assert out.isascii()
            assert all(isinstance(json.loads(line), dict) for line in out.splitlines())
