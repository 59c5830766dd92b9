"""Whatever is given as options, path or schema: one error on the driver, with its code, before it runs."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings
from hypothesis.strategies import SearchStrategy

from mq.broker.local import LocalBroker
from mq.spark.columns import TYPES
from mq.spark.datasource import MqDataSource
from mq.spark.errors import SparkError
from mq.spark.option_names import ALIASES, CLUSTER_NAMES, SECRETS, SINK_NAMES, SOURCE_NAMES
from mq.spark.sink.options import sink_options
from mq.spark.source.options import SourceOptions, source_options
from tests.spark.reading import Query, batch_rows, forget_brokers, send, source, struct
from tests.support.store.small_store import open_small

NAMES = [*SOURCE_NAMES, *SINK_NAMES, *ALIASES, "nameServer", "checkpointLocation", "startingOffset", ""]
DEEP = "[" * 100_000
PLAIN = """\
-1\n0\n1\n1.5\n-1e9\nnan\nNaN\ninf\nnull\ntrue\n1_000\n+5\n٣\n²\n0x10\n1e400d\n10m\n1 h\n*
latest\nearliest\ngroup\n{}\n[]\n{\n7\n"orders"
{"orders": NaN}\n{"orders": {"0": 1e999}}\n{"a": {"0": 1}}\n{"orders": {"0": "1"}}\n{"orders": {}}
{"orders": {"0": true}}\n{"orders": {"0": null}}\n{"orders": {"0": 1}, "orders": {"0": 2}}\n{"#v": 1}
{"orders": {"0": 1, "0": 2}}\n{"orders": {"0": 1, "00": 2}}\n{"orders": {"٣": 1}}\n{"orders": {"-1": 1}}
{"orders": {"0": 99999999999999999999}}\n{"orders": [0, 0.5]}\n{"orders": [true]}\n{"orders": [[0]]}
{"orders": []}\norders\norders,,x\na.b\n%RETRY%g\n(\n[a-\n(?P<x>\na{99999999999}\nx IN (\na = 1 AND
a || b\n||\n0001-01-01\n9999-12-31T23:59:59\n2026-13-45\nftp://x/y\nrocketmq://h:1\nfile:///x\nROCKETMQ:x
'; DROP"""
NONSENSE = [
    *PLAIN.split("\n"),
    *("", " ", "\0", "\n", "\ud800", "x" * 3000, "9" * 30, "9" * 5000, "9" * 400 + "d"),
    *(DEEP, '{"a":' * 50_000, "(" * 2000 + ")" * 2000, "(" * 5000, "NOT " * 5000 + "a"),
]
values = (
    st.sampled_from(NONSENSE) | st.text(max_size=30) | st.from_regex(r"[0-9]{1,25}[mshd]?", fullmatch=True)
)


def json_like() -> SearchStrategy[str]:
    leaves: SearchStrategy[Any] = (
        st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["orders", "0", "#v", "1"])
    )
    keys = st.sampled_from(["orders", "0", "1", "#v", "#last", ""]) | st.text(max_size=5)
    nested = st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
        max_leaves=8,
    )
    return nested.map(json.dumps)


options_dicts = st.dictionaries(
    st.sampled_from(NAMES) | st.text(max_size=12), values | json_like(), max_size=6
)


def outcome_of(call: Callable[[], Any]) -> Any:
    """What it returns, or the SparkError that it raises."""
    try:
        return call()
    except SparkError as error:
        return error


def plan(given: MqDataSource, schema: Any, *, stream: bool) -> None:
    """What Spark has done on the driver before a task runs."""
    if stream:
        given.streamReader(schema=schema).initialOffset()
    else:
        given.reader(schema=schema).partitions()


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of a regular expression, which may be nonsense too
@settings(max_examples=400)
@given(options_dicts, st.booleans(), st.booleans())
@example({"assign": DEEP}, False, True)
@example({"topic": "a", "maxOffsetsPerTrigger": "9" * 5000}, True, True)
def test_any_options_are_understood_or_refused(given: dict[str, str], stream: bool, complete: bool) -> None:
    options = {"path": "/somewhere", "topic": "orders", **given} if complete else given
    for parse in (
        lambda: source_options(options, stream=stream, now_ms=1_767_225_600_000, cores=2),
        lambda: sink_options(options),
    ):
        outcome = outcome_of(parse)
        if isinstance(outcome, SparkError):
            assert str(outcome).startswith("[MQ_OPTION] ")
            assert len(str(outcome)) < 2000
        else:
            assert pickle.loads(pickle.dumps(outcome)) == outcome


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", SOURCE_NAMES)
def test_every_option_names_itself_in_what_is_said_against_it(name: str) -> None:
    """And every value that is refused says what would be taken, with the option's own name."""
    refused = 0
    for value in NONSENSE:
        options = {"path": "/somewhere", "topic": "orders"}
        if name in {"topicPattern", "assign"}:
            del options["topic"]
        if name == "startingOffsetsByTimestampStrategy":
            options["startingTimestamp"] = "0"
        if name == "commitToGroup":
            options["group"] = "g"
        if name in CLUSTER_NAMES:
            del options["path"]
            options |= {"nameServer": "h:9876", "accessKey": "a", "secretKey": "s", "tlsCertFile": "f"}
            options["tls"] = "true"
        options[name] = value
        stream = name not in {"endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "key"}
        outcome = outcome_of(partial(source_options, options, stream=stream, now_ms=0, cores=1))
        if isinstance(outcome, SparkError):
            refused += 1
            assert f"option {name} " in str(outcome) or f"option {name}: " in str(outcome)
        else:
            assert isinstance(outcome, SourceOptions)
        if name in SECRETS:
            assert value.strip() == "" or not isinstance(outcome, SparkError)
    files = {"tlsCaFile", "tlsCertFile", "tlsKeyFile"}  # looked at where they are used
    few = {"path", "topicPattern", "tags", "key", "nameServer", *SECRETS}
    assert refused >= (0 if name in files else 1 if name in few else 10)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("", "MQ_OPTION"),
        (" ", "MQ_OPTION"),
        ("rocketmq://", "MQ_OPTION"),
        ("hdfs://nodes/orders", "MQ_OPTION"),
        ("\0", "MQ_STORE"),
        ("\ud800", "MQ_STORE"),
        ("x" * 5000, "MQ_STORE"),
        ("nothing", "MQ_STORE"),
        ("file", "MQ_STORE"),
        ("file/inside", "MQ_STORE"),
        ("empty", "MQ_STORE"),
        ("not-a-store", "MQ_STORE"),
        ("damaged", "MQ_STORE"),
        ("another-layout", "MQ_STORE"),
    ],
)
def test_a_path_that_is_no_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, code: str, stream: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("x")
    Path("empty").mkdir()
    Path("not-a-store").mkdir()
    Path("not-a-store", "notes.txt").write_text("x")
    opened = None
    if path in {"damaged", "another-layout"}:
        opened = open_small(tmp_path / path)
        opened.create_topic("orders", 1)
        (tmp_path / path / "mq" / "control").rename(tmp_path / "control")
        (tmp_path / path / "mq" / "control").write_bytes(
            bytes(10) if path == "damaged" else b"\xff" * 64 + (tmp_path / "control").read_bytes()[64:]
        )
    with pytest.raises(SparkError) as caught:
        plan(source(tmp_path, topic="orders", path=path), struct("body"), stream=stream)
    assert str(caught.value).startswith(f"[{code}] option path is ")
    assert len(str(caught.value)) < 1000
    assert list(Path("empty").iterdir()) == []
    if opened is not None:
        (tmp_path / "control").rename(tmp_path / path / "mq" / "control")
        opened.close()


def field(name: str, kind: str, *, nullable: bool = True) -> Any:
    from pyspark.sql import types

    kinds = {
        "text": types.StringType(),
        "varchar": types.VarcharType(10),
        "bytes": types.BinaryType(),
        "long": types.LongType(),
        "int": types.IntegerType(),
        "time": types.TimestampType(),
        "local time": types.TimestampNTZType(),
        "struct": types.StructType().add("body", types.BinaryType()),
        "list": types.ArrayType(types.BinaryType()),
        "map": types.MapType(types.StringType(), types.StringType()),
        "map without nulls": types.MapType(types.StringType(), types.StringType(), False),
    }
    return types.StructField(name, kinds[kind], nullable)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ([], "the schema has no column; there are topic string, "),
        ([("body", "text")], "column body is binary and cannot be read as string"),
        ([("queueOffset", "int")], "column queueOffset is bigint and cannot be read as int"),
        ([("storeTimestamp", "local time")], "cannot be read as timestamp_ntz"),
        ([("topic", "varchar")], "cannot be read as varchar(10)"),
        ([("body", "struct")], "cannot be read as struct<body:binary>"),
        ([("body", "list")], "cannot be read as array<binary>"),
        ([("body", "bytes"), ("body", "bytes")], "a column is named twice"),
        ([("body", "bytes"), ("Body", "bytes")], "no column 'Body'; did you mean body?"),
        ([("QUEUEID", "int")], "no column 'QUEUEID'; did you mean queueId?"),
        ([("weather", "text")], "there is no column 'weather'. The columns are topic string, "),
        ([("tags", "text", False)], "column tags is null in messages without: give it"),
        ([("keys", "text", False)], "column keys is null"),
        ([("properties", "map without nulls")], "column properties"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_schema_that_does_not_fit(
    broker: LocalBroker, directory: Path, fields: list[Any], said: str, stream: bool
) -> None:
    from pyspark.sql import types

    schema = types.StructType([field(name, kind, nullable=not more) for name, kind, *more in fields])
    with pytest.raises(SparkError) as caught:
        plan(source(directory, topic="orders"), schema, stream=stream)
    assert str(caught.value).startswith("[MQ_SCHEMA] ")
    assert said in str(caught.value)


def test_columns_that_are_never_null_may_be_given_so(broker: LocalBroker, directory: Path) -> None:
    from pyspark.sql import types

    send(broker, "orders", 0, b"x")
    kinds = {"string": "text", "int": "int", "bigint": "long", "timestamp": "time", "binary": "bytes"}
    schema = types.StructType(
        [
            field(name, kinds[kind], nullable=False)
            for name, kind in TYPES.items()
            if name not in {"tags", "keys", "properties"}
        ]
    )
    reader = source(directory, topic="orders").reader(schema=schema)
    (partition,) = reader.partitions()
    (batch,) = reader.read(partition)
    assert not any(field.nullable for field in batch.schema)
    assert batch.column("body").to_pylist() == [b"x"]


def test_options_of_a_query_that_contradict_its_store(broker: LocalBroker, directory: Path) -> None:
    """Found when the query begins, not by a task."""
    send(broker, "orders", 0, b"x")
    broker.create_topic("closed", 1, perm="w")
    for options, said in (
        ({"topic": "closed"}, r"\[MQ_TOPIC\] topic closed cannot be read"),
        ({"topic": "orders,none"}, r"\[MQ_TOPIC\] there is no topic 'none'"),
        ({"assign": '{"orders": [0, 7]}'}, r"\[MQ_OPTION\] option assign: .* not \[7\]"),
        ({"topic": "orders", "startingTimestamp": "2999-01-01"}, r"\[MQ_OPTION\] option startingTimestamp"),
    ):
        with pytest.raises(SparkError, match=said):
            Query(directory, **options)
        with pytest.raises(SparkError, match=said):
            batch_rows(directory, **options)
    assert batch_rows(directory, topicPattern="clo.*") == []
    forget_brokers()
