"""The columns of the source, and the check of a schema given by the user.

A schema with fewer columns reads only those: this is column pruning.
"""

from __future__ import annotations

from collections.abc import Sequence

from mq.spark.errors import SparkError, nearest

# Names and Spark's names of their types, in the order of the full schema.
TYPES = {
    "topic": "string",
    "brokerName": "string",
    "queueId": "int",
    "queueOffset": "bigint",
    "msgId": "string",
    "tags": "string",
    "keys": "string",
    "bornTimestamp": "timestamp",
    "storeTimestamp": "timestamp",
    "reconsumeTimes": "int",
    "flag": "int",
    "properties": "map<string,string>",
    "body": "binary",
}
OPTIONAL = ("tags", "keys", "properties")


def schema_text(include_properties: bool) -> str:
    """The schema of a source, unless the user gives one."""
    return ", ".join(
        f"{name} {kind}" for name, kind in TYPES.items() if include_properties or name != "properties"
    )


def check_nullable(name: str) -> None:
    """Raises SparkError for an optional column that a schema declares as not nullable."""
    if name in OPTIONAL:
        raise SparkError(
            "MQ_SCHEMA", f"column {name} is null in messages without: give it, and its values, as nullable"
        )


def check_fields(fields: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """The column names of a schema, given as pairs of name and Spark type. Raises SparkError if one is
    wrong."""
    if not fields:
        raise SparkError("MQ_SCHEMA", f"the schema has no column; there are {_listed()}")
    for name, kind in fields:
        if name not in TYPES:
            raise SparkError(
                "MQ_SCHEMA",
                f"there is no column {name!r}{nearest(name, TYPES) or '.'} The columns are {_listed()}",
            )
        if kind != TYPES[name]:
            raise SparkError(
                "MQ_SCHEMA",
                f"column {name} is {TYPES[name]} and cannot be read as {kind}: read it so, then cast it",
            )
    names = tuple(name for name, _ in fields)
    if len(set(names)) != len(names):
        raise SparkError("MQ_SCHEMA", f"a column is named twice: {', '.join(names)}")
    return names


def _listed() -> str:
    return ", ".join(f"{name} {kind}" for name, kind in TYPES.items())
