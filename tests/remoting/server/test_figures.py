"""Rates and totals that operators' tools draw, over a broker of each kind."""

from __future__ import annotations

import re
import time

import pytest

import mq
from mq.remoting.codec.bodies.route import KeyValues
from mq.remoting.codec.bodies.stats import BrokerStats, ConsumeStats, TopicStats
from mq.remoting.codec.requests.brokers import GetBrokerRuntimeInfo
from mq.remoting.codec.requests.statistics import GetConsumeStats, GetTopicStats, ViewBrokerStats
from mq.remoting.codec.response_codes import ResponseCode
from mq.remoting.server.figures import Figures, Growth, Meter
from mq.remoting.server.server import Server
from tests.support.memory.broker import MemoryBroker
from tests.support.raw_requests import ask, body

MINUTE, HOUR = 60, 3600


# What the exporter for Prometheus reads as numbers of type long, and fails where one is missing.
NUMBERS = """msgPutTotalTodayNow sendThreadPoolQueueHeadWaitTimeMills queryThreadPoolQueueHeadWaitTimeMills
    msgGetTotalTodayNow queryThreadPoolQueueSize bootTimestamp msgPutTotalYesterdayMorning
    msgGetTotalYesterdayMorning pullThreadPoolQueueSize commitLogMinOffset
    pullThreadPoolQueueHeadWaitTimeMills dispatchMaxBuffer brokerVersion pageCacheLockTimeMills
    commitLogMaxOffset getMessageEntireTimeMax msgPutTotalTodayMorning putMessageTimesTotal
    msgGetTotalTodayMorning sendThreadPoolQueueSize startAcceptSendRequestTimeStamp
    putMessageEntireTimeMax earliestMessageTimeStamp dispatchBehindBytes remainTransientStoreBufferNumbs
    queryThreadPoolQueueCapacity putMessageSizeTotal sendThreadPoolQueueCapacity
    pullThreadPoolQueueCapacity"""


def test_a_meter_knows_its_window_alone() -> None:
    meter = Meter(MINUTE, HOUR)
    for second in range(0, 600, 3):
        meter.note(second * 10, second)
    minute, hour = (meter.growth(seconds, 6000, 600) for seconds in (MINUTE, HOUR))
    assert minute.per_second == hour.per_second == 10
    assert MINUTE <= minute.seconds <= MINUTE * 1.2
    assert hour == Growth(6000, 600)
    assert meter.growth(MINUTE, 0, 600).grown == 0  # It was set back.
    assert Meter(MINUTE).growth(MINUTE, 7, 600) == Growth(0, 0.0)


def test_a_meter_keeps_few_samples() -> None:
    meter = Meter(MINUTE)
    for tenth in range(100_000):
        meter.note(tenth, tenth / 10)
    assert meter.sample_count <= 13


def test_stored_messages_count_by_their_time(store: mq.Broker, server: Server) -> None:
    topic = store.create_topic("orders", 2)
    for _ in range(6):
        topic.send(b"x")
    store.create_topic("idle", 1)
    for name, key in (("TOPIC_PUT_NUMS", "orders"), ("BROKER_PUT_NUMS", "DefaultCluster")):
        found = body(BrokerStats, ask(server, ViewBrokerStats(name, key)))
        assert found.stats_minute is not None
        assert found.stats_hour is not None
        assert found.stats_day is not None
        assert found.stats_minute.sum == found.stats_hour.sum == found.stats_day.sum == 6
        assert found.stats_minute.tps == pytest.approx(0.1)
    assert body(TopicStats, ask(server, GetTopicStats("orders"))).topic_put_tps == pytest.approx(0.1)
    assert body(TopicStats, ask(server, GetTopicStats("idle"))).topic_put_tps == 0


def test_messages_of_an_hour_ago_are_not_of_this_minute(
    store: mq.Broker, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create_topic("orders", 1).send(b"x")
    later = time.time_ns() + HOUR * 10**9 // 2
    monkeypatch.setattr("mq.remoting.server.figures.time.time_ns", lambda: later)
    minute, hour = Figures(store).stored(["orders"], MINUTE, HOUR)
    assert (minute.grown, hour.grown) == (0, 1)


def test_what_a_group_consumes_counts_from_the_first_look(store: mq.Broker, server: Server) -> None:
    topic = store.create_topic("orders", 1)
    for _ in range(6):
        topic.send(b"x")
    claim = store.consumer_groups.assigned("billing").claim(store.readable("orders")[0])
    claim.commit(1)
    request = ViewBrokerStats("GROUP_GET_NUMS", "orders@billing")
    found = []
    for offset in (1, 5):
        claim.commit(offset)
        rate = body(BrokerStats, ask(server, request)).stats_minute
        assert rate is not None
        found.append(rate.sum)
    assert found == [0, 4]
    assert body(ConsumeStats, ask(server, GetConsumeStats("billing"))).consume_tps > 0


def test_other_statistics_are_refused(server: Server) -> None:
    for name, key in (("TOPIC_PUT_SIZE", "orders"), ("BROKER_PUT_NUMS", "elsewhere")):
        answer = ask(server, ViewBrokerStats(name, key))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert f"The stats <{name}> <{key}> not exist" in answer.remark
    assert ask(server, ViewBrokerStats("TOPIC_PUT_NUMS", "gone")).code == ResponseCode.TOPIC_NOT_EXIST


def test_runtime_figures_are_those_of_the_broker(store: mq.Broker, server: Server) -> None:
    before_ms = time.time_ns() // 1_000_000
    topic = store.create_topic("orders", 1)
    for _ in range(6):
        topic.send(b"x")
    (first,) = topic.queues[0].read(0, count_max=1).messages
    found = body(KeyValues, ask(server, GetBrokerRuntimeInfo())).table
    assert found["brokerActive"] == "true"
    assert found["msgPutTotalTodayNow"] == found["putMessageTimesTotal"] == "6"
    assert found["msgPutTotalTodayMorning"] == found["msgPutTotalYesterdayMorning"] == "0"
    assert found["putTps"].split()[2] == "0.010"
    assert found["earliestMessageTimeStamp"] == str(first.store_time_ms)
    assert int(found["bootTimestamp"]) <= before_ms
    if isinstance(store, mq.LocalBroker):
        begin, end = store.replication.log_range
        assert (found["commitLogMinOffset"], found["commitLogMaxOffset"]) == (str(begin), str(end))
        assert 0 < float(found["commitLogDiskRatio"]) <= 1


def test_a_tool_finds_every_figure_that_it_reads(server: Server) -> None:
    found = body(KeyValues, ask(server, GetBrokerRuntimeInfo())).table
    assert [name for name in NUMBERS.split() if not re.fullmatch(r"-?\d+", found.get(name, ""))] == []
    for name in ("putTps", "getMissTps", "getTransferedTps", "getTotalTps", "getFoundTps"):
        assert len([float(rate) for rate in found[name].split()]) == 3
    for name in ("consumeQueueDiskRatio", "commitLogDiskRatio", "putMessageAverageSize"):
        assert float(found[name]) >= 0
    size = r"\d+(\.\d)? [KMGTPE]?i?B"
    assert re.fullmatch(rf"Total : {size}, Free : {size}\.", found["commitLogDirCapacity"])
    assert re.fullmatch(size, found["remainHowManyDataToFlush"])
    assert re.fullmatch(r"(\[\S+\]:\d+ ?)+", found["putMessageDistributeTime"])


def test_a_report_that_costs_much_is_kept_for_a_while() -> None:
    with MemoryBroker() as store:
        figures, calls = Figures(store), list[float]()

        def cheap() -> dict[str, str]:
            calls.append(0.0)
            return {"cost": "little"}

        def expensive() -> dict[str, str]:
            calls.append(1.0)
            end = time.thread_time() + 0.2
            while time.thread_time() < end:
                pass
            return {"cost": "much"}

        assert figures.kept(cheap) == figures.kept(cheap) == {"cost": "little"}
        assert figures.kept(expensive) == figures.kept(expensive) == figures.kept(cheap) == {"cost": "much"}
        assert calls == [0.0, 0.0, 1.0]
