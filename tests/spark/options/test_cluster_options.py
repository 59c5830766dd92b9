"""Options that name a cluster: what they mean, what they exclude, and that nothing shows their secrets."""

from __future__ import annotations

import pickle
import re
from typing import Any

import pytest

from mq.api.results import MessageQueue
from mq.spark import lag
from mq.spark.errors import SparkError
from mq.spark.option_names import SECRETS, SINK_NAMES, check_names
from mq.spark.sink.options import sink_options
from mq.spark.source.offsets import Offset, TopicMarker
from mq.spark.source.options import SourceOptions, source_options
from mq.spark.source.queue_keys import key_of, queue_of
from mq.spark.target_options import ClusterRef, target_of

# Spark's default of spark.redaction.regex.
REDACTED = re.compile("(?i)secret|password|token|access[.]?key")
KEYS = {"accessKey": "the-access-key", "secretKey": "the-secret-key"}
CLUSTER = {"nameServer": "h:9876", "topic": "orders"}


def parsed(**given: str) -> SourceOptions:
    return source_options({**CLUSTER, **given}, stream=False, now_ms=0, cores=1)


def test_a_cluster_is_named_by_its_name_servers() -> None:
    assert target_of(CLUSTER) == ClusterRef("h:9876")
    assert target_of({"nameServer": "h1;h2:1234, [::1]:9"}) == ClusterRef("h1:9876;h2:1234;[::1]:9")
    assert target_of({"path": "rocketmq://h:9876"}) == ClusterRef("h:9876")
    assert check_names({"NamesrvAddr": "h:9876"}) == {"nameServer": "h:9876"}
    assert str(ClusterRef("h1:9876;h2:1234")) == "rocketmq://h1:9876;h2:1234"


def test_how_a_cluster_is_reached() -> None:
    given = {
        **KEYS,
        "namespace": "shop",
        "timeout": "1500ms",
        "tls": "true",
        "tlsCaFile": "/ca.pem",
        "tlsCertFile": "/cert.pem",
        "tlsKeyFile": "/key.pem",
        "tlsCheckHostname": "false",
    }
    target = parsed(**given).target
    assert target == ClusterRef(
        "h:9876",
        access_key="the-access-key",
        secret_key="the-secret-key",
        namespace="shop",
        timeout=1.5,
        tls=True,
        tls_ca_file="/ca.pem",
        tls_cert_file="/cert.pem",
        tls_key_file="/key.pem",
        tls_check_hostname=False,
    )
    assert pickle.loads(pickle.dumps(target)) == target


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"path": "/store"}, "option nameServer is 'h:9876' and option path is '/store'"),
        ({"path": "rocketmq://h:9876"}, "give one of them"),
        ({"nameServer": ""}, "names no name server"),
        ({"nameServer": "h:x"}, "is no address"),
        ({"accessKey": "a"}, "accessKey and secretKey belong together"),
        ({"accessKey": "a", "secretKey": " "}, "option secretKey is empty"),
        ({"namespace": "a b"}, "option namespace is 'a b'"),
        ({"timeout": "0ms"}, "give 1ms to 1h"),
        ({"timeout": "3"}, "give a number and ms, s, m, h or d"),
        ({"tls": "yes"}, "give true or false"),
        ({"tlsCaFile": "/ca.pem"}, "option tlsCaFile is about tls: give tls=true"),
        ({"tls": "true", "tlsKeyFile": "/key.pem"}, "name that by tlsCertFile"),
        ({"maxBytesPerTrigger": "1"}, "option maxBytesPerTrigger needs a directory"),
        ({"startingOffsets": '{"orders": {"0": 1}}'}, '{"broker-a:0": 23, "broker-b:0": -2}'),
        ({"assign": '{"orders": [0]}'}, '["broker-a:0", "broker-b:0"]'),
    ],
)
def test_contradicting_cluster_options_are_rejected(given: dict[str, str], said: str) -> None:
    options = {**CLUSTER, **given}
    if "assign" in given:
        del options["topic"]
    with pytest.raises(SparkError, match=r"^\[MQ_OPTION\] ") as raised:
        source_options(options, stream="maxBytesPerTrigger" in given, now_ms=0, cores=1)
    assert said in str(raised.value)


@pytest.mark.parametrize("name", ["accessKey", "namespace", "timeout", "tls", "tlsCaFile"])
def test_what_is_about_a_cluster_is_refused_for_a_directory(name: str) -> None:
    with pytest.raises(SparkError, match=f"option {name} is about a cluster: name one by option nameServer"):
        source_options({"path": "/x", "topic": "t", name: "1s"}, stream=False, now_ms=0, cores=1)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"semantics": "exactly_once"}, "needs the ledger of a directory"),
        ({"chunkBytes": "1"}, "option chunkBytes needs a directory"),
        ({"path": "/x"}, "give one of them"),
        ({"txnVersion": "1"}, "counts the writes of a txnAppId"),
    ],
)
def test_what_a_sink_cannot_do_on_a_cluster(given: dict[str, str], said: str) -> None:
    with pytest.raises(SparkError, match=re.escape(said)):
        sink_options({**CLUSTER, **given})


def test_a_sink_is_at_least_once_and_may_name_its_writes() -> None:
    assert not sink_options(CLUSTER).exactly_once
    named = sink_options({**CLUSTER, "semantics": "at_least_once", "txnAppId": "sums", "txnVersion": "7"})
    assert (named.txn, named.version) == ("sums", 7)


def test_queues_are_named_with_their_broker() -> None:
    start = parsed(startingOffsets='{"orders": {"a:0": 23, "b:c:01": -2}}').start
    assert start.per_queue == {"orders": {"a:0": 23, "b:c:1": -2}}
    options = {"nameServer": "h:9876", "assign": '{"orders": ["b:0", "a:10", "a:9"]}'}
    assigned = source_options(options, stream=False, now_ms=0, cores=1).assigned
    assert assigned == {"orders": ("a:9", "b:0", "a:10")}
    queue = MessageQueue("orders", "b:c", 1)
    assert queue_of("orders", key_of(queue, on_cluster=True), None) == queue


def test_a_group_names_the_reader_even_if_nothing_else_is_asked_of_it() -> None:
    assert parsed(group="reports").group == "reports"


def test_tasks_do_not_depend_on_the_machine_of_the_driver() -> None:
    assert parsed().tasks == source_options(CLUSTER, stream=False, now_ms=0, cores=64).tasks


POSITIONS = {MessageQueue("orders", "a", 0): 5, MessageQueue("orders", "b", 0): 7}


def test_offsets_of_a_cluster() -> None:
    offset = Offset(POSITIONS, {"orders": TopicMarker("b:0", 6, 600, 1)}, dict.fromkeys(POSITIONS, 1), True)
    value = offset.json(on_cluster=True)
    assert value["orders"] == {"a:0": 5, "b:0": 7}
    assert Offset.of(value, None) == offset
    with pytest.raises(SparkError, match="of a cluster and not of a directory: start the query with a new"):
        Offset.of(value, "mq")
    with pytest.raises(SparkError, match="of a directory and not of a cluster"):
        Offset.of({"#v": 1, "orders": {"0": 5}}, None)
    for damaged in ({"a:x": 1}, {":0": 1}, {"a:-1": 1}, {"a:0": -1}):
        with pytest.raises(SparkError, match="which is damaged"):
            Offset.of({"#v": 1, "orders": damaged}, None)


def test_lag_of_a_query_on_a_cluster() -> None:
    end = Offset(POSITIONS, {}).json(on_cluster=True)
    latest = Offset({queue: offset + 2 for queue, offset in POSITIONS.items()}, {}).json(on_cluster=True)
    progress = {"sources": [{"endOffset": end, "latestOffset": latest}]}
    assert lag(progress) == dict.fromkeys(POSITIONS, 2)


# Secrets.


def shows_a_secret(text: str) -> bool:
    return any(value in text for value in KEYS.values())


def test_spark_shows_no_value_of_an_option_with_such_a_name() -> None:
    assert all(REDACTED.search(name) for name in SECRETS)
    assert set(SECRETS) <= set(SINK_NAMES)


def test_no_repr_has_a_secret() -> None:
    options = parsed(**KEYS)
    made: list[Any] = [options, options.target, sink_options({**CLUSTER, **KEYS})]
    pytest.importorskip("pyspark")
    from mq.spark.datasource import MqDataSource
    from mq.spark.sink.cluster_writers import ClusterBatchWriter
    from mq.spark.source.batch import BatchReader
    from mq.spark.source.stream import StreamReader

    source = MqDataSource({name.lower(): value for name, value in {**CLUSTER, **KEYS}.items()})
    assert isinstance(options.target, ClusterRef)
    made += [source, BatchReader(options.target, options, None), StreamReader(options.target, options, None)]
    made.append(ClusterBatchWriter(options.target, sink_options({**CLUSTER, **KEYS})))
    for each in made:
        assert not shows_a_secret(f"{each!r} {each!s}")


@pytest.mark.parametrize("more", [{"tls": "x"}, {"secretKey": ""}, {"path": "/x"}, {"topik": "orders"}])
def test_no_error_has_a_secret(more: dict[str, str]) -> None:
    for parse in (lambda given: source_options(given, stream=False, now_ms=0, cores=1), sink_options):
        with pytest.raises(SparkError) as raised:
            parse({**CLUSTER, **KEYS, **more})
        assert not shows_a_secret(str(raised.value))
    with pytest.raises(SparkError, match=r"secretKey is given twice, under two names$"):
        check_names({"secretKey": "the-secret-key", "SECRETKEY": "the-access-key"})
