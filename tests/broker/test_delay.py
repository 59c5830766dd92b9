"""Delay levels on a clock that is set: each message delivered once when it is due, even if the leader dies.

The store is one in memory (fake_delay_store.py), and the leader can be made to die before every single
change.
"""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mq
from mq.api.results import PullResult
from mq.broker.delay.levels import SCHEDULE_TOPIC, destination, due_ms
from mq.store.directory.delay_levels import LEVELS, parse_levels
from tests.broker.fake_delay_store import BEGIN_MS, Deliverer, Died, FakeDelayStore, bodies, until_done
from tests.support.store.encoder import Record

SECOND, MINUTE, HOUR = 1000, 60_000, 3_600_000


class TestLevels:
    def test_the_default_delay_levels_are_rocketmqs(self) -> None:
        minutes = [*range(1, 11), 20, 30]
        assert parse_levels(LEVELS) == (
            *(SECOND * seconds for seconds in (1, 5, 10, 30)),
            *(MINUTE * each for each in minutes),
            HOUR,
            2 * HOUR,
        )
        assert len(parse_levels(LEVELS)) == 18

    def test_delay_levels_parse_every_unit(self) -> None:
        assert parse_levels(" 50ms 1s  2m 3h 4d") == (50, SECOND, 2 * MINUTE, 3 * HOUR, 96 * HOUR)

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "  ",
            "1",
            "s",
            "0s",
            "-1s",
            "1.5s",
            "1 s",
            "1s,2s",
            "367d",
            "9" * 30 + "d",
            "1s " * 65,
            "\u0661s",
        ],
    )
    def test_what_is_none_is_refused(self, text: str) -> None:
        with pytest.raises(ValueError, match="message_delay_level"):
            parse_levels(text)

    def test_due_after_the_delay_and_not_before(self) -> None:
        assert due_ms(BEGIN_MS, 5000, BEGIN_MS + 3) == BEGIN_MS + 5000

    def test_a_clock_that_was_set_back_makes_nothing_early_and_nothing_hang(self) -> None:
        """A store time ahead of the clock: the delay counts from when the message was first looked at."""
        assert due_ms(BEGIN_MS + HOUR, 5000, BEGIN_MS) == BEGIN_MS + 5000

    def test_each_new_leader_counts_at_most_one_delay_and_ends_by_the_clock(self) -> None:
        """Of leaders that see a message for the first time, at whatever time the clock shows."""
        delay_ms, stored_ms = 5000, BEGIN_MS
        for back_ms in (0, 1, 4999, 5000, HOUR):
            for since_ms in (0, 1, 4999):  # since it was stored, when this leader takes over
                seen_ms = stored_ms + since_ms - back_ms
                wait_ms = due_ms(stored_ms, delay_ms, seen_ms) - seen_ms
                assert delay_ms - since_ms <= wait_ms <= delay_ms
                assert seen_ms + wait_ms <= stored_ms + delay_ms

    @pytest.mark.parametrize(
        "properties",
        [
            b"",
            b"REAL_TOPIC\x01orders\x02",
            b"REAL_QID\x010\x02",
            b"REAL_TOPIC\x01orders\x02REAL_QID\x01-1\x02",
            b"REAL_TOPIC\x01orders\x02REAL_QID\x01one\x02",
            b"REAL_TOPIC\x01orders\x02REAL_QID\x01" + b"9" * 12 + b"\x02",
            b"REAL_TOPIC\x01../orders\x02REAL_QID\x010\x02",
            b"REAL_TOPIC\x01SCHEDULE_TOPIC_XXXX\x02REAL_QID\x010\x02",
            b"REAL_TOPIC\x01RMQ_SYS_TRANS_HALF_TOPIC\x02REAL_QID\x010\x02",
        ],
    )
    def test_a_message_that_does_not_say_where_it_belongs(self, properties: bytes) -> None:
        assert (
            destination(mq.MessageExt(Record("SCHEDULE_TOPIC_XXXX", b"x", properties).encode(), "mq")) is None
        )


class TestDelivery:
    """On a clock that is set."""

    @pytest.mark.parametrize("level", range(1, 19))
    def test_every_level_delivers_when_its_delay_has_passed(self, tmp_path: Path, level: int) -> None:
        store, delays = FakeDelayStore(), parse_levels(LEVELS)
        deliverer = Deliverer(store, tmp_path, delays)
        store.put_aside(level, b"later")
        store.now = BEGIN_MS + delays[level - 1]
        # Stored some time within a ms: its delay has passed for sure when the ms has in which it ends.
        assert deliverer.deliver() == store.now + 1
        assert store.delivered() == []
        store.now += 1
        assert deliverer.deliver() is None
        (message,) = store.delivered()
        assert (message.body, message.store_time_ms) == (b"later", store.now)

    def test_levels_do_not_wait_for_each_other(self, tmp_path: Path) -> None:
        store = FakeDelayStore()
        deliverer = Deliverer(store, tmp_path, (5000, 1000))
        store.put_aside(1, b"slow")
        store.put_aside(2, b"quick")
        assert list(until_done(store, deliverer.deliver)) == [BEGIN_MS + 1001, BEGIN_MS + 5001]
        assert bodies(store.delivered()) == [b"quick", b"slow"]

    def test_a_message_that_is_put_aside_meanwhile_is_seen(self, tmp_path: Path) -> None:
        store = FakeDelayStore()
        deliverer = Deliverer(store, tmp_path, (5000, 1000))
        store.put_aside(1, b"slow")
        assert deliverer.deliver() == BEGIN_MS + 5001
        store.now += 10
        store.put_aside(2, b"quick")
        assert deliverer.deliver() == BEGIN_MS + 1011

    def test_a_message_that_is_put_aside_while_the_clock_is_read_is_not_early(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = FakeDelayStore()
        store.put_aside(1, b"%d" % store.now)
        clock = store.clock

        def slow() -> int:
            now = clock()
            if store.now < BEGIN_MS + 100:
                store.now += 7
                store.put_aside(1, b"%d" % store.now)
            return now

        monkeypatch.setattr(store, "clock", slow)
        list(until_done(store, Deliverer(store, tmp_path, (5000,)).deliver))
        late_ms = [message.store_time_ms - int(message.body) - 5000 for message in store.delivered()]
        assert len(late_ms) > 3
        assert min(late_ms) > 0

    def test_a_delayed_message_stored_during_a_read_is_not_early(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = FakeDelayStore()
        pull = store.pull

        def busy(*arguments: Any) -> PullResult:
            """The machine has other work, and the clock goes on."""
            if len(store.queues[SCHEDULE_TOPIC, 0]) == 1:
                store.now += 700
                store.put_aside(1, b"meanwhile")
            return pull(*arguments)

        monkeypatch.setattr(store, "pull", busy)
        deliverer = Deliverer(store, tmp_path, (1000,))
        store.put_aside(1, b"first")
        assert list(until_done(store, deliverer.deliver)) == [BEGIN_MS + 1001, BEGIN_MS + 1701]
        assert bodies(store.delivered()) == [b"first", b"meanwhile"]

    def test_a_copy_keeps_all_that_the_message_was_born_with(self, tmp_path: Path) -> None:
        store = FakeDelayStore()
        deliverer = Deliverer(store, tmp_path, (1000,))
        properties = b"UNIQ_KEY\x01ID\x02KEYS\x01k1 k2\x02TAGS\x01t\x02own\x01value\x02DELAY\x011\x02"
        properties += b"REAL_TOPIC\x01A\x02REAL_QID\x013\x02"
        store.put(SCHEDULE_TOPIC, 0, b"body", properties, reconsume_times=2, born_time=BEGIN_MS - 7)
        list(until_done(store, deliverer.deliver))
        (copy,) = store.delivered("A", 3)
        assert (copy.topic, copy.queue_id, copy.body) == ("A", 3, b"body")
        assert (copy.born_time_ms, copy.reconsume_times) == (BEGIN_MS - 7, 2)
        # As RocketMQ has it: those that asked for the delay stay.
        assert copy.properties == store.queues[SCHEDULE_TOPIC, 0][0].properties

    def test_a_backlog_of_one_level_does_not_keep_another_waiting(self, tmp_path: Path) -> None:
        store = FakeDelayStore()
        deliverer = Deliverer(store, tmp_path, (1000, 2000))
        for number in range(1000):
            store.put_aside(1, b"%d" % number)
        store.put_aside(2, b"other")
        store.now += 10_000
        assert deliverer.deliver() is None
        assert len(store.delivered()) == 1001
        assert bodies(store.delivered()).index(b"other") <= 64

    def test_what_does_not_say_where_it_belongs_is_passed_over(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        store = FakeDelayStore()
        deliverer = Deliverer(store, tmp_path, (1000,))
        store.put(SCHEDULE_TOPIC, 0, b"lost", b"UNIQ_KEY\x01THIS\x02DELAY\x011\x02")
        store.put_aside(1, b"sound")
        with caplog.at_level(logging.WARNING, "mq"):
            list(until_done(store, deliverer.deliver))
        assert bodies(store.delivered()) == [b"sound"]
        assert "THIS" in caplog.text

    def test_a_full_disk_delays_and_loses_nothing(self, tmp_path: Path) -> None:
        store = FakeDelayStore()
        deliverer = Deliverer(store, tmp_path, (1000,))
        for number in range(3):
            store.put_aside(1, b"%d" % number)
        store.failing = [mq.StoreFull("no space", path="x")] * 2
        times = list(until_done(store, deliverer.deliver))
        assert bodies(store.delivered()) == [b"0", b"1", b"2"]
        assert times == [BEGIN_MS + 1001, BEGIN_MS + 1101, BEGIN_MS + 1201]

    def test_messages_that_retention_took_are_passed_over_with_a_word(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        store = FakeDelayStore()
        for number in range(4):
            store.put_aside(1, b"%d" % number)
        kept = store.queues[SCHEDULE_TOPIC, 0]

        def pull(queue: Any, offset: int, *rest: Any) -> Any:
            if offset < 2:
                return mq.PullResult(mq.PullStatus.OFFSET_ILLEGAL, (), 2, 2, len(kept))
            return store.pull(queue, offset, *rest)

        deliverer = Deliverer(store, tmp_path, (1000,), pull=pull)
        list(until_done(store, deliverer.deliver))
        assert bodies(store.delivered()) == [b"2", b"3"]
        assert "delay level 1 before they were delivered: offsets 0 to 1" in caplog.text

    def test_a_damaged_message_is_passed_over(self, tmp_path: Path) -> None:
        store = FakeDelayStore()
        for number in range(3):
            store.put_aside(1, b"%d" % number)

        def pull(queue: Any, offset: int, count: int, *rest: Any) -> Any:
            if offset == 1:
                raise mq.StoreCorrupted("bad bytes", queue=queue, queue_offset=1)
            return store.pull(queue, offset, 1, *rest)

        deliverer = Deliverer(store, tmp_path, (1000,), pull=pull)
        list(until_done(store, deliverer.deliver))
        assert bodies(store.delivered()) == [b"0", b"2"]

    @pytest.mark.parametrize(("saved", "left"), [(1, [b"1", b"2"]), (3, []), (99, [b"1", b"2"])])
    def test_an_offset_beyond_the_end_gives_way_to_the_one_on_disk(
        self, tmp_path: Path, saved: int, left: list[bytes]
    ) -> None:
        """Where that is beyond it as well, as in a file of another time, it goes on from the first. Nothing
        comes again."""
        store = FakeDelayStore()
        deliverer = Deliverer(store, tmp_path, (1000,))
        store.put_aside(1, b"0")
        list(until_done(store, deliverer.deliver))
        for number in (1, 2):
            store.put_aside(1, b"%d" % number)
        deliverer.offsets.save({1: saved})
        deliverer.offsets[1] = 77
        list(until_done(store, deliverer.deliver))
        store.put_aside(1, b"new")
        list(until_done(store, deliverer.deliver))
        assert bodies(store.delivered()) == [b"0", *left, b"new"]

    def test_after_the_clock_is_set_back_no_message_waits_longer_than_its_delay(self, tmp_path: Path) -> None:
        """Counted from when that was seen, and for all at once that were there by then."""
        store = FakeDelayStore()
        deliverer = Deliverer(store, tmp_path, (5000,))
        for number in range(200):
            store.put_aside(1, b"%d" % number)
            store.now += 10
        assert deliverer.deliver() == BEGIN_MS + 5001
        back = store.now = BEGIN_MS - HOUR
        assert deliverer.deliver() == back + 5001
        store.put_aside(1, b"new")
        store.now = back + 5000
        assert deliverer.deliver() == back + 5001
        assert store.delivered() == []
        store.now = back + 5001
        deliverer.deliver()
        assert bodies(store.delivered()) == [*(b"%d" % number for number in range(200)), b"new"]

    @pytest.mark.parametrize("jumps", [(-3,), (-3600,), (7200, -7200), (-2, -2), (3600, -3603)], ids=str)
    def test_the_leader_keeps_counting_the_delay_when_the_clock_is_set_back(
        self, tmp_path: Path, jumps: tuple[int, ...]
    ) -> None:
        """Also for the last of a queue; where the clock was before the messages came counts for nothing."""
        store, real_ms, times = FakeDelayStore(), [0], dict[bytes, int]()
        deliverer = Deliverer(store, tmp_path, (10_000,), monotonic=lambda: real_ms[0])

        def passes(seconds: int) -> None:
            for _ in range(seconds * 10):
                real_ms[0] += 100
                store.now += 100
                deliverer.deliver()
                for message in store.delivered():
                    times.setdefault(message.body, real_ms[0])

        for jump in jumps[:-1]:
            store.now += jump * SECOND
            passes(1)
        begin = real_ms[0]
        for number in range(4):
            store.put_aside(1, b"%d" % number)
            passes(2)
        store.now += jumps[-1] * SECOND
        passes(20)
        late_ms = [times[b"%d" % number] - begin - number * 2000 - 10_000 for number in range(4)]
        assert all(0 <= late <= 300 for late in late_ms), late_ms

    def test_what_is_put_aside_after_the_clock_was_set_back_waits_once(self, tmp_path: Path) -> None:
        """Its store time is the last one before; a second one does not wait until the first is delivered."""
        store, real_ms = FakeDelayStore(), [0]
        deliverer = Deliverer(store, tmp_path, (10_000,), monotonic=lambda: real_ms[0])
        last = store.now
        store.now -= HOUR
        times: list[int] = []
        for step in range(200):
            if step in (0, 50):
                now, store.now = store.now, last
                store.put_aside(1, b"%d" % step)
                store.now = now
            deliverer.deliver()
            times += [real_ms[0]] * (len(store.delivered()) - len(times))
            real_ms[0] += 100
            store.now += 100
        assert times == [10_100, 15_100]

    def test_a_level_that_is_gone_delivers_when_its_units_say(self, tmp_path: Path) -> None:
        store = FakeDelayStore()
        store.put_aside(1, b"known")
        store.put_aside(3, b"gone")
        store.put_aside(2, b"damaged")
        codes = {SCHEDULE_TOPIC: {0: BEGIN_MS + 1000, 1: 77, 2: BEGIN_MS + HOUR}}

        def code(number: int, _offset: int) -> int:
            topic, queue_id = store.numbers[number]
            return codes[topic][queue_id]

        deliverer = Deliverer(store, tmp_path, (1000,), more=2, code=code)
        assert list(until_done(store, deliverer.deliver)) == [BEGIN_MS + 1001, BEGIN_MS + HOUR + 1]
        assert bodies(store.delivered()) == [b"known", b"damaged", b"gone"]


class TestDeath:
    """The leader dies before a change that others would see, and another leader continues."""

    def test_at_every_step_of_every_delivery(self, tmp_path: Path) -> None:
        step = 0
        while True:
            store, root = FakeDelayStore(), tmp_path / str(step)
            first = Deliverer(store, root, (1000, 3000))
            for number in range(3):
                store.put_aside(1, b"%d" % number)
            store.put_aside(2, b"3")
            # The very same message once more, as a sender's retry leaves it.
            twice = store.queues[SCHEDULE_TOPIC, 0][1]
            store.put(SCHEDULE_TOPIC, 0, twice.body, twice.encoded[:-20])
            store.death.dies_at = store.death.steps + step
            try:
                list(until_done(store, first.deliver))
            except Died:
                died = True
            else:
                died = False
            store.death.dies_at = None
            store.put("orders", 0, b"sent meanwhile", b"UNIQ_KEY\x01OTHER\x02")
            list(until_done(store, Deliverer(store, root, (1000, 3000)).deliver))
            delivered = [body for body in bodies(store.delivered()) if body != b"sent meanwhile"]
            assert sorted(delivered) == [b"0", b"1", b"1", b"2", b"3"], step
            if not died:
                break
            step += 1
        assert step > 30  # Seven changes for each of five messages.

    @pytest.mark.parametrize("saved", [False, True])
    def test_in_another_life_of_the_store_what_was_delivered_is_looked_for(
        self, tmp_path: Path, saved: bool
    ) -> None:
        store = FakeDelayStore()
        first = Deliverer(store, tmp_path, (1000, 60_000))
        for number in range(3):
            store.put_aside(1, b"%d" % number)
            store.put_aside(2, b"later %d" % number)
            store.now += 1001
            first.deliver()
            if saved:
                first.offsets.save(first.offsets.unsaved())
        assert bodies(store.delivered()) == [b"0", b"1", b"2"]
        store.epoch += 1
        store.now += 500
        looked_for: list[str] = []

        def look(topic: str, message: mq.MessageExt) -> bool:
            looked_for.append(message.msg_id)
            return store.was_stored(topic, message)

        second = Deliverer(store, tmp_path, (1000, 60_000), was_stored=look)
        assert second.offsets.doubt_ms == store.last_stored
        list(until_done(store, second.deliver))
        assert bodies(store.delivered()) == [b"0", b"1", b"2", b"later 0", b"later 1", b"later 2"]
        # Those that were not due then are not looked for.
        assert len(looked_for) == (0 if saved else 3)

    @given(st.data())
    def test_nothing_lost_nothing_twice_nothing_early(self, data: st.DataObject) -> None:
        """Against a list: messages come at any time, and deaths at any step, also in the middle of a
        takeover."""
        delays = (1000, 1500, 20_000)
        store = FakeDelayStore()
        sent: dict[str, tuple[int, int]] = {}
        with tempfile.TemporaryDirectory() as name:
            root = Path(name)
            deliverer = Deliverer(store, root, delays)
            for _ in range(data.draw(st.integers(1, 25))):
                store.now += data.draw(st.sampled_from([0, 1, 400, 1000, 5000]))
                if data.draw(st.booleans()):
                    level = data.draw(st.integers(1, 3))
                    unique_id = store.put_aside(level, b"x", queue_id=data.draw(st.integers(0, 1)))
                    sent[unique_id] = store.now, delays[level - 1]
                else:
                    store.death.dies_at = store.death.steps + data.draw(st.integers(0, 20))
                    try:
                        deliverer.deliver()
                    except Died:
                        # Of all that was noted in memory, nothing is left after a reboot.
                        store.epoch += data.draw(st.booleans())
                        deliverer = Deliverer(store, root, delays)
                    store.death.dies_at = None
            list(until_done(store, deliverer.deliver))
        came = [message for queue_id in (0, 1) for message in store.delivered(queue_id=queue_id)]
        assert sorted(message.msg_id for message in came) == sorted(sent)
        for message in came:
            stored, delay = sent[message.msg_id]
            assert message.store_time_ms > stored + delay
