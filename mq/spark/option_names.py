"""The names of all options. They are compared without regard to case, as everywhere in Spark.

One that is not known is an error, since the Kafka connector's silence about a misspelt startingOffset costs
its users data. Values of secrets are in no error: their names are such that Spark, too, shows none
(spark.redaction.regex).
"""

from __future__ import annotations

from collections.abc import Mapping

from mq.spark.errors import Refusal, nearest, shown

__all__ = ["CLUSTER_NAMES", "SECRETS", "SINK_NAMES", "SOURCE_NAMES", "check_names"]

# What both have: where to read, or to write.
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
OF_A_TABLE = {"provider", "location"}  # what Spark says besides of a table that is in its catalog


def check_names(options: Mapping[str, str]) -> dict[str, str]:
    """The options by their names as documented. Raises Refusal for one that there is not, and for two names
    of one option with different values."""
    known = {name.lower(): name for name in (*SOURCE_NAMES, *SINK_NAMES)} | ALIASES
    if {given.lower() for given in options} >= OF_A_TABLE:
        raise Refusal(
            "MQ_OPTION",
            "a table cannot be made of mq: Spark keeps the options of a table to itself, and a reader of it"
            " would be told none; CREATE TEMPORARY VIEW ... USING mq OPTIONS (...) has them told",
        )
    found: dict[str, str] = {}
    for given, value in options.items():
        key = given.lower()
        if key in SPARKS_OWN:
            continue
        if key not in known:
            raise Refusal("MQ_OPTION", f"there is no option {shown(given)}{nearest(given, known.values())}")
        name = known[key]
        if found.setdefault(name, value) != value:
            values = "" if name in SECRETS else f": {shown(found[name])} and {shown(value)}"
            raise Refusal("MQ_OPTION", f"{name} is given twice, under two names{values}")
    return found
