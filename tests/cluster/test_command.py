"""The command line on a cluster: each verb that makes sense there, and one clear line for the others."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.support.cluster.shared import ROOT, SharedCluster, unique_name
from tests.support.eventually import eventually

pytestmark = [pytest.mark.oracle, pytest.mark.rounds, pytest.mark.timeout(300)]

DIRECTORY_VERBS = [
    ("expire", "--hours", "1"),
    ("timers",),
    ("retention",),
    ("settings",),
    ("redrive", "billing"),
]


def mq_command(cluster: SharedCluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mq", f"rocketmq://{cluster.name_server}", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
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


@pytest.mark.parametrize("arguments", DIRECTORY_VERBS, ids=" ".join)
def test_what_needs_a_directory_says_so(cluster: SharedCluster, arguments: tuple[str, ...]) -> None:
    completed = mq_command(cluster, *arguments)
    assert completed.returncode == 1
    assert len(completed.stderr.splitlines()) == 1
    assert "directory" in completed.stderr
