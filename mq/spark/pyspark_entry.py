"""The package pyspark_mq, as setup.py installs it: Spark looks for packages of such names, and takes their
DefaultSource. One that fails to be imported hides those of everybody else, so this one does not fail.
"""

from contextlib import suppress

with suppress(Exception):
    from mq.spark.datasource import MqDataSource as DefaultSource

    __all__ = ["DefaultSource"]
