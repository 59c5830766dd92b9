"""The command line on a cluster: each verb that makes sense there, and one clear line for the others."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import mq
from tests.support.cluster.access import Access, Account
from tests.support.cluster.cluster import Cluster
from tests.support.cluster.shared import ROOT, SharedCluster, unique_name
from tests.support.eventually import eventually

pytestmark = [pytest.mark.oracle, pytest.mark.rounds, pytest.mark.timeout(300)]

LIMIT = 120.0
DIRECTORY_VERBS = [
    ("bench",),
    ("expire", "--hours", "1"),
    ("timers",),
    ("replicate", "127.0.0.1:1"),
    ("retention",),
    ("serve", "--port", "0", "--name-server-port", "0"),
    ("settings",),
    ("sinks",),
    ("redrive", "billing"),
    ("verify",),
]


def line(cluster: SharedCluster, *arguments: str) -> list[str]:
    # A broker on a machine under load may take longer than the default limit of a request.
    options = ["--timeout", "30"]
    return [sys.executable, "-m", "mq", *options, f"rocketmq://{cluster.name_server}", *arguments]


def mq_command(cluster: SharedCluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        line(cluster, *arguments),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )


def said(cluster: SharedCluster, *arguments: str) -> list[Any]:
    completed = mq_command(cluster, "--json", *arguments)
    assert (completed.returncode, completed.stderr) == (0, "")
    return [json.loads(line) for line in completed.stdout.splitlines()]


def test_a_message_goes_through_the_verbs(cluster: SharedCluster) -> None:
    topic, group = unique_name("orders"), unique_name("billing")
    said(cluster, "create", topic, "--queues", "1")
    assert topic in [each["topic"] for each in said(cluster, "topics")]
    (sent,) = said(cluster, "send", topic, "hello", "--key", "k1", "--tag", "paid")
    (shown,) = said(cluster, "show", sent["offset_msg_id"])
    assert shown["body"] == "hello"
    eventually(lambda: len(said(cluster, "query", topic, "k1")) == 1, lambda: "not indexed")
    assert mq_command(cluster, "consume", topic, "--group", group, "--count", "1").returncode == 0
    assert group in [each["group"] for each in said(cluster, "groups")]
    assert mq_command(cluster, "reset", group, topic, "--to", "earliest").returncode == 0


def test_tail_prints_the_newest_and_follows(cluster: SharedCluster) -> None:
    topic = unique_name("orders")
    said(cluster, "create", topic, "--queues", "1")
    for number in range(3):
        said(cluster, "send", topic, f"old {number}")

    def newest() -> list[str]:
        return [each["body"] for each in said(cluster, "tail", topic, "-n", "2", "--no-follow")]

    # A broker shows a message some ms after it has acknowledged it.
    eventually(lambda: newest() == ["old 1", "old 2"], newest, LIMIT)
    with subprocess.Popen(
        line(cluster, "--json", "tail", topic, "--from", "first"), cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as following:
        watch = threading.Timer(LIMIT, following.kill)
        watch.start()
        try:
            assert following.stdout is not None
            came = [json.loads(following.stdout.readline())["body"] for _ in range(3)]
            said(cluster, "send", topic, "new")
            came.append(json.loads(following.stdout.readline())["body"])
        finally:
            watch.cancel()
            following.kill()
    assert came == ["old 0", "old 1", "old 2", "new"]


def test_top_shows_topics_groups_and_members(cluster: SharedCluster) -> None:
    topic, group = unique_name("orders"), unique_name("billing")
    said(cluster, "create", topic, "--queues", "1")
    said(cluster, "send", topic, "hello")
    with (
        mq.open(f"rocketmq://{cluster.name_server}", timeout=30.0) as broker,
        mq.PushConsumer(broker, group) as consumer,
    ):
        consumer.subscribe(topic, listener=lambda _message: None)
        consumer.start()
        eventually(
            lambda: broker.group(group).lag(topic) == 0, lambda: broker.group(group).states(topic), LIMIT
        )
        first, second = said(cluster, "top", "--count", "2", "--interval", "0.1")
    assert {"topic": topic, "queues": 2, "messages": 1, "sent_per_s": None} in first["topics"]
    [shown] = [each for each in second["groups"] if (each["group"], each["topic"]) == (group, topic)]
    assert (shown["members"], shown["lag"], shown["consumed_per_s"]) == (1, 0, 0.0)
    [member] = [each for each in second["members"] if each["group"] == group and each["member"]]
    assert member["member"]["host"] == "127.0.0.1"
    assert [each["topic"] for each in member["member"]["subscriptions"]] == [topic]


def test_recall_cancels_a_delayed_message(cluster: SharedCluster) -> None:
    topic, group = unique_name("orders"), unique_name("billing")
    said(cluster, "create", topic, "--queues", "1")
    [sent] = said(cluster, "send", topic, "recalled", "--delay-ms", "20000")
    [recalled] = said(cluster, "recall", sent["recall_handle"])
    assert recalled["msg_id"] == sent["msg_id"]
    said(cluster, "send", topic, "due later", "--delay-ms", "21000")
    came = said(cluster, "consume", topic, "--group", group, "--from", "first", "--count", "1")
    assert [each["body"] for each in came] == ["due later"]


def test_delete_removes_a_topic_from_every_broker(cluster: SharedCluster) -> None:
    topic = unique_name("orders")
    said(cluster, "create", topic)
    assert said(cluster, "delete", topic) == [{"deleted": topic}]
    assert topic not in [each["topic"] for each in said(cluster, "topics")]
    again = mq_command(cluster, "delete", topic)
    assert (again.returncode, len(again.stderr.splitlines())) == (1, 1)
    assert topic in again.stderr


@pytest.mark.parametrize("arguments", [(), ("--resume", "0" * 32)], ids=["list", "resume"])
def test_transactions_says_what_a_cluster_cannot_do(
    cluster: SharedCluster, arguments: tuple[str, ...]
) -> None:
    completed = mq_command(cluster, "transactions", *arguments)
    assert (completed.returncode, len(completed.stderr.splitlines())) == (1, 1)
    assert "use RocketMQ's own tools" in completed.stderr


def test_a_cluster_with_access_control_wants_the_options(tmp_path: Path) -> None:
    account = Account("rocketmq-shop", "secret-of-shop", {"orders": "PUB|SUB"}, {"billing": "SUB"})
    with Cluster(access=Access((account,)), tls="enforcing") as secured:
        assert secured.certificates is not None
        with secured.clients() as java:
            java.create_topic("orders", 1)
        secret = tmp_path / "secret"
        secret.write_text(account.secret_key)
        options = ["--tls-ca", str(secured.certificates.authority), "--tls-any-host", "--timeout", "30"]
        key = ["--access-key", account.access_key, "--secret-key-file", str(secret)]

        def answer(*arguments: str) -> subprocess.CompletedProcess[str]:
            command = [sys.executable, "-m", "mq", *options, f"rocketmq://{secured.name_server}"]
            return subprocess.run(
                [*command, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT, check=False
            )

        refused = answer("send", "orders", "hello")
        assert (refused.returncode, len(refused.stderr.splitlines())) == (1, 1), refused.stderr
        sent = answer(*key, "send", "orders", "hello")
        assert (sent.returncode, sent.stderr) == (0, "")
        came = answer(
            *key, "--json", "consume", "orders", "--group", "billing", "--from", "first", "--count", "1"
        )
        assert (came.returncode, came.stderr) == (0, "")
        assert json.loads(came.stdout)["body"] == "hello"


@pytest.mark.parametrize("arguments", DIRECTORY_VERBS, ids=" ".join)
def test_what_needs_a_directory_says_so(cluster: SharedCluster, arguments: tuple[str, ...]) -> None:
    completed = mq_command(cluster, *arguments)
    assert completed.returncode == 1
    assert len(completed.stderr.splitlines()) == 1
    assert "directory" in completed.stderr
