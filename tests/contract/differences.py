"""In what a broker of RocketMQ differs from a directory, on purpose or because it is as it is.

A test about one of these says so, `@needs(OWN_SETTINGS)`, and runs with the kinds that have it. What a kind
lacks stands here alone.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

ANSWERED_ENDS = "answered ends"
BROADCAST_RESET = "broadcast reset"
CHECKED_FIRST = "checked first"
COUNTED_MATCHES = "counted matches"
DELAYED_RETRIES = "delayed retries"
EXACT_DELAYS = "exact delays"
EXACT_RECORDS = "exact records"
EXACT_TIMES = "exact times"
EXCLUSIVE_QUEUES = "exclusive queues"
KEPT_BROADCAST = "kept broadcast"
KEPT_WAIT = "kept wait"
LONG_NAMES = "long names"
ONE_WAY_REFUSALS = "one-way refusals"
KNOWN_RECALLS = "known recalls"
OWN_SETTINGS = "own settings"
PROMPT_NEWS = "prompt news"
SHRINKING = "shrinking"
SUBSCRIPTION_CHECK = "subscription check"
TIMERS = "timers"
TOLD_LACK = "told lack"
TOPIC_IDENTITY = "topic identity"
UNREAD_LAG = "unread lag"

_CLUSTER = {
    ANSWERED_ENDS: "nobody is told how a transaction's end went, nor which transactions are undecided",
    BROADCAST_RESET: "a reset reaches the first member alone that pulls: a broker does not know the others",
    CHECKED_FIRST: "a broker makes the topic of a message before it looks at how late it is due",
    COUNTED_MATCHES: "a pull looks at count_max messages and gives those of them that match",
    DELAYED_RETRIES: "a broker does not tell what of a group waits to be consumed again",
    EXACT_DELAYS: "what is due within one slot of the timer wheel comes in any order, and some ms later",
    EXACT_RECORDS: "a broker adds properties of its own, leaves out others, and has no checksum of a record",
    EXCLUSIVE_QUEUES: "members work out their shares by themselves, and a queue has two owners for a moment",
    KEPT_BROADCAST: "each broadcasting client keeps its own offsets, which a broker does not know of",
    ONE_WAY_REFUSALS: "nobody answers a one-way send, so what the broker refuses is not told",
    LONG_NAMES: "a namespace takes its part of the 127 characters",
    KNOWN_RECALLS: "a broker takes any recall in time, and does not look for the message",
    OWN_SETTINGS: "the operator of the brokers sets what mq.open() sets of a directory",
    PROMPT_NEWS: "consumers learn of a new topic, or of a reset, up to 20 s later; tests/remoting waits",
    SHRINKING: "a topic loses queues at once: no broker waits until they are consumed",
    SUBSCRIPTION_CHECK: "a broker does not compare the subscriptions of a group's members",
    TOPIC_IDENTITY: "a topic that was deleted and made again cannot be told from the old one",
    UNREAD_LAG: "queues that nobody may read are in no consumer's route",
}
# What a broker of 5.3 has, and one of 4.9 has not.
_OF_4_9 = {
    EXACT_TIMES: "4.9 finds the message nearest to a time, or any of those of one time",
    KEPT_WAIT: "4.9 does not store that a message was not waited for",
    TIMERS: "4.9 has delay levels alone",
    TOLD_LACK: "4.9 answers offset 0 for a group without one, while the first message is in memory",
}
# A directory behind the wire: what is lacking is what the wire, or the client, cannot say.
_SERVED = {ability: why for ability, why in _CLUSTER.items() if ability not in {CHECKED_FIRST, LONG_NAMES}}
LACKING: Mapping[str, Mapping[str, str]] = {
    "cluster": _CLUSTER,
    "cluster-4.9": {**_CLUSTER, **_OF_4_9},
    "served": _SERVED,
}


def needs(*abilities: str) -> pytest.MarkDecorator:
    """Marks a test for the kinds of brokers that lack none of these."""
    assert all(ability in _CLUSTER or ability in _OF_4_9 for ability in abilities)
    return pytest.mark.needs(*abilities)
