"""Check that the installed PySpark is new enough for the data source."""

from __future__ import annotations

import re

from mq.spark.errors import SparkError

__all__ = ["check_spark"]

AT_LEAST = 4, 2


def check_spark() -> None:
    """Raises SparkError if PySpark is missing or too old."""
    least = ".".join(map(str, AT_LEAST))
    advice = f"format('mq') needs PySpark {least} or later: pip install -U 'mq[spark]'"
    try:
        from pyspark import __version__
    except ImportError as error:
        raise SparkError("MQ_SPARK_TOO_OLD", f"there is no PySpark ({error}), and {advice}") from None
    numbers = re.match(r"(\d+)\.(\d+)", __version__)
    if numbers is None or (int(numbers[1]), int(numbers[2])) < AT_LEAST:
        raise SparkError("MQ_SPARK_TOO_OLD", f"this is PySpark {__version__}, and {advice}")
