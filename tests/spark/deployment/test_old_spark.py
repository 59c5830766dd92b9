"""A PySpark that is too old, or none: said so, with what is needed, wherever one comes across it."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from mq.spark import register
from mq.spark.errors import SparkError
from mq.spark.version import check_spark

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("version", ["3.5.5", "4.0.1", "4.1.4", "4.1.0.dev0", "3.0", "nonsense"])
def test_a_version_that_is_too_old(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    import pyspark

    monkeypatch.setattr(pyspark, "__version__", version)
    for call in (check_spark, lambda: register(None)):
        with pytest.raises(SparkError) as caught:
            call()
        assert str(caught.value) == (
            f"[MQ_SPARK_TOO_OLD] this is PySpark {version}, and format('mq') needs PySpark 4.2 or later:"
            " pip install -U 'mq[spark]'"
        )


@pytest.mark.parametrize("version", ["4.2.0", "4.3.0", "4.10.1", "5.0.0.dev3", "4.2.0rc1"])
def test_a_version_that_is_not(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    import pyspark

    monkeypatch.setattr(pyspark, "__version__", version)
    check_spark()


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("pyspark", "there is no PySpark ("),
        ("pyspark.sql", "this is PySpark 3.5.5, and format('mq') needs"),
    ],
)
def test_modules_that_are_not_there(missing: str, said: str) -> None:
    """mq.spark is imported all the same, and what Spark looks for never fails."""
    program = f"""
        import sys, types
        sys.modules["pyspark"] = None if {missing!r} == "pyspark" else types.ModuleType("pyspark")
        if sys.modules["pyspark"]:
            sys.modules["pyspark"].__version__ = "3.5.5"
        import mq.spark
        import mq.spark.pyspark_entry
        assert not hasattr(mq.spark.pyspark_entry, "DefaultSource")
        mq.spark.recommended_conf()
        try:
            mq.spark.register(None)
        except mq.MQError as error:
            print(error)
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert ran.stdout.startswith("[MQ_SPARK_TOO_OLD] ")
    assert said in ran.stdout
