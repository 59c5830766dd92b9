"""The names of all options. Case does not matter, as everywhere in Spark.

An unknown option is an error: the Kafka connector ignores a misspelt startingOffset, and its users lose data.
No error shows the value of a secret. The names of secrets match spark.redaction.regex, so Spark hides them
too.
"""

from __future__ import annotations

from collections.abc import Mapping

from mq.spark.errors import SparkError, nearest, short

__all__ = ["CLUSTER_NAMES", "SECRETS", "SINK_NAMES", "SOURCE_NAMES", "check_names"]

# Options of both: the directory or the cluster.
SECRETS = ("accessKey", "secretKey")
CLUSTER_NAMES = (
    *("nameServer", *SECRETS, "namespace", "timeout"),
    *("tls", "tlsCaFile", "tlsCertFile", "tlsKeyFile", "tlsCheckHostname"),
)
TARGET_NAMES = ("path", *CLUSTER_NAMES)
SOURCE_NAMES = (
    *TARGET_NAMES,
    *("topic", "topicPattern", "assign", "includeProperties", "tags", "sql", "key"),
    *("group", "commitToGroup"),
    *("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp"),
    *("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy"),
    *("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"),
    *("failOnDataLoss", "pollTimeoutMs"),
    *("minPartitions", "maxRecordsPerPartition", "targetRowsPerTask", "batchRows", "batchBytes"),
)
SINK_NAMES = (*TARGET_NAMES, "topic", "semantics", "txnAppId", "txnVersion", "chunkBytes")
ALIASES = {
    "subscribe": "topic",
    "subscribepattern": "topicPattern",
    "queues": "assign",
    "subexpression": "tags",
    "namesrvaddr": "nameServer",
}
SPARKS_OWN = {"checkpointlocation", "queryname", "outputmode", "triggerinterval"}
OF_A_TABLE = {"provider", "location"}  # Spark adds these for a table of its catalog


def check_names(options: Mapping[str, str]) -> dict[str, str]:
    """The options under their documented names. Raises SparkError for an unknown option, and for an option
    given under two names with different values."""
    known = {name.lower(): name for name in (*SOURCE_NAMES, *SINK_NAMES)} | ALIASES
    if {given.lower() for given in options} >= OF_A_TABLE:
        raise SparkError(
            "MQ_OPTION",
            "mq cannot back a table: Spark does not pass the options of a table to its reader; use CREATE"
            " TEMPORARY VIEW ... USING mq OPTIONS (...)",
        )
    found: dict[str, str] = {}
    for given, value in options.items():
        key = given.lower()
        if key in SPARKS_OWN:
            continue
        if key not in known:
            raise SparkError(
                "MQ_OPTION", f"there is no option {short(given)}{nearest(given, known.values())}"
            )
        name = known[key]
        if found.setdefault(name, value) != value:
            values = "" if name in SECRETS else f": {short(found[name])} and {short(value)}"
            raise SparkError("MQ_OPTION", f"{name} is given twice, under two names{values}")
    return found
