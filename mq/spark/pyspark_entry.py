"""The package pyspark_mq, as setup.py installs it. Spark imports every package named pyspark_* and registers
its DefaultSource. If one import fails, Spark registers none of them, so this import never fails.
"""

from contextlib import suppress

with suppress(Exception):
    from mq.spark.datasource import MqDataSource as DefaultSource

    __all__ = ["DefaultSource"]
