"""`send` of what is to come later, `timers` and `recall`."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from pathlib import Path

import mq
from tests.cli.conftest import Run

HOUR = 3_600_000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_nothing_waits_in_a_store_without_delays(run: Run) -> None:
    assert run("send", "orders", "x").status == 0
    answer = run("timers")
    assert (answer.status, answer.out) == (0, "no message waits\n")
    assert run("timers", "--json").out == ""
    assert run("timers", "--list").out == "no message waits\n"


def test_what_waits_is_counted_by_topic_and_by_when(run: Run, directory: Path) -> None:
    begin = now_ms()
    with mq.open(directory) as broker:
        orders, bills = broker.create_topic("orders", 2), broker.create_topic("bills", 1)
        for minutes in (30, 30, 90, 50 * 60):
            orders.send(b"x", delay_ms=minutes * 60_000)
        recalled = orders.send(b"x", delay_ms=HOUR).recall_handle
        orders.send(b"at once")
        bills.send(b"x", delay_level=18)
        bills.send(b"x", delay_level=14)
        bills.send(b"x", deliver_at_ms=begin + 20 * HOUR)
        assert recalled is not None
        assert {one.recall_handle is None for one in broker.delayed() if one.delay_level} == {True}
    answer = run("timers")
    assert answer.status == 0
    heading, first, second = (line.split() for line in answer.out.splitlines())
    assert " ".join(heading) == "TOPIC WAITING NEXT 1 MIN 1 H 1 D LATER"
    # The time to the next one is rounded.
    assert first in (["bills", "3", next_, "min", "0", "1", "2", "0"] for next_ in ("10", "9", "8"))
    assert second in (["orders", "5", next_, "min", "0", "3", "1", "1"] for next_ in ("30", "29", "28"))
    bills_facts, orders_facts = run("timers", "--json").objects
    assert (bills_facts["topic"], bills_facts["waiting"], bills_facts["with_delay_level"]) == ("bills", 3, 2)
    assert bills_facts["last_due_ms"] == begin + 20 * HOUR
    assert begin + HOUR // 2 <= orders_facts["next_due_ms"] <= now_ms() + HOUR // 2
    spans = ("within_minute", "within_hour", "within_day", "later")
    assert [orders_facts[f"due_{name}"] for name in spans] == [0, 3, 1, 1]
    assert [one["topic"] for one in run("timers", "bills", "--json").objects] == ["bills"]
    listed = run("timers", "--list", "--json").objects
    assert [one["due_ms"] for one in listed] == sorted(one["due_ms"] for one in listed)
    assert [one["delay_level"] for one in listed if one["topic"] == "bills"] == [14, 18, 0]
    assert recalled in {one["recall_handle"] for one in listed}
    assert len(run("timers", "--list", "--limit", "3", "--json").objects) == 3


def test_wrong_options_of_timers_are_rejected(run: Run) -> None:
    assert run("send", "orders", "x").status == 0
    for arguments in (
        ("timers", "--limit", "3"),
        ("send", "orders", "x", "--deliver-at", "10m"),
        ("send", "orders", "x", "--deliver-at", "soon"),
        ("send", "orders", "x", "--delay-ms", "-1"),
        ("send", "orders", "x", "--delay-level", "19"),
        ("send", "orders", "x", "--delay-level", "1", "--delay-ms", "5"),
        ("send", "orders", "x", "--delay-ms", "999999999999"),
        ("recall", "no handle"),
    ):
        answer = run(*arguments)
        assert (answer.status, answer.out) == (2, ""), arguments
        assert answer.err
    assert run("timers", "others").status == 1
    assert run("timers").out == "no message waits\n"


def test_a_message_with_a_time_of_its_own_is_printed_with_its_handle(run: Run) -> None:
    at = datetime.fromtimestamp((now_ms() + 2 * HOUR) // 1000, timezone.utc)
    for arguments, wanted in (
        (("--deliver-at", at.isoformat()), int(at.timestamp() * 1000)),
        (("--deliver-at", str(int(at.timestamp() * 1000))), int(at.timestamp() * 1000)),
        (("--delay-ms", str(2 * HOUR)), None),
    ):
        answer = run("send", "orders", "x", *arguments)
        msg_id, place, waits, handle = answer.out.split()
        assert (place.split("/")[0], waits) == ("orders", "waits")
        (listed,) = (one for one in run("timers", "--list", "--json").objects if one["msg_id"] == msg_id)
        assert listed["recall_handle"] == handle
        if wanted:
            assert listed["due_ms"] == wanted
    answer = run("send", "orders", "x", "--delay-level", "18")
    assert answer.out.split()[1:][1:] == ["waits"]
    (facts,) = run("send", "orders", "x", "--delay-ms", "5000000", "--json").objects
    assert facts["recall_handle"]
    assert facts["queue_offset"] is None
    (facts,) = run("send", "orders", "x", "--delay-ms", "0", "--json").objects
    assert (facts["recall_handle"], facts["queue_offset"]) == (None, 0)


def test_send_lines_with_a_delay_delays_each_line(run: Run) -> None:
    answer = run("send", "orders", "--lines", "--delay-ms", "5000000", stdin=b"one\ntwo\n\nthree\n")
    assert answer.out.startswith("3 messages sent")
    assert run("timers", "--json").objects[0]["waiting"] == 3


def test_an_overdue_message_waits_for_a_leader(run: Run, directory: Path) -> None:
    levels = "50ms"
    with mq.open(directory, message_delay_level=levels) as broker:
        orders = broker.create_topic("orders", 1)
        orders.send(b"delivered", delay_level=1)
        assert orders.queues[0].read(0, wait=60.0).messages
    with mq.open(directory, message_delay_level=levels, duties=False) as broker:
        sent = broker.topic("orders").send(b"overdue", delay_level=1)
        time.sleep(0.2)
        [waiting] = broker.delayed()
        assert waiting.msg_id == sent.msg_id
        assert waiting.due_ms < now_ms()
    [listed] = run("timers", "--list", "--json").objects
    assert listed["due_ms"] == waiting.due_ms
