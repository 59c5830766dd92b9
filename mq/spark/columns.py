"""The columns of the source: which there are, and whether a schema that a user gives fits them.

A schema of fewer columns reads fewer: that is how columns are pruned.
"""

from __future__ import annotations

from collections.abc import Sequence

from mq.spark.errors import Refusal, nearest

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
    """The schema of a source that was given none."""
    return ", ".join(
        f"{name} {kind}" for name, kind in TYPES.items() if include_properties or name != "properties"
    )


def check_nullable(name: str) -> None:
    """Raises Refusal for a column that some messages do not have, where a schema says that all do."""
    if name in OPTIONAL:
        raise Refusal(
            "MQ_SCHEMA", f"column {name} is null in messages without: give it, and its values, as nullable"
        )


def chosen(fields: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """The names of the columns of a schema, given with Spark's names of their types."""
    if not fields:
        raise Refusal("MQ_SCHEMA", f"the schema has no column; there are {_listed()}")
    for name, kind in fields:
        if name not in TYPES:
            raise Refusal(
                "MQ_SCHEMA",
                f"there is no column {name!r}{nearest(name, TYPES) or '.'} The columns are {_listed()}",
            )
        if kind != TYPES[name]:
            raise Refusal(
                "MQ_SCHEMA",
                f"column {name} is {TYPES[name]} and cannot be read as {kind}: read it so, then cast it",
            )
    names = tuple(name for name, _ in fields)
    if len(set(names)) != len(names):
        raise Refusal("MQ_SCHEMA", f"a column is named twice: {', '.join(names)}")
    return names


def _listed() -> str:
    return ", ".join(f"{name} {kind}" for name, kind in TYPES.items())
