"""One Spark for all tests: two threads of one JVM, quiet, and found by nothing but what is installed."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from mq.spark import recommended_conf, use_java

ROOT = Path(__file__).parents[2]

ERRORS = """
rootLogger.level = error
rootLogger.appenderRef.shown.ref = shown
appender.shown.type = Console
appender.shown.name = shown
appender.shown.target = SYSTEM_ERR
appender.shown.layout.type = PatternLayout
appender.shown.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""

SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def environment(place: Path) -> dict[str, str]:
    """What Spark and its workers are started with: this interpreter, this mq, and the package that Spark
    looks for if it is not installed."""
    paths = [str(ROOT)]
    if importlib.util.find_spec("pyspark_mq") is None:
        package = place / "installed" / "pyspark_mq"
        package.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "mq" / "spark" / "pyspark_entry.py", package / "__init__.py")
        paths.append(str(package.parent))
    conf = place / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    (conf / "log4j2.properties").write_text(ERRORS)
    use_java()
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_CONF_DIR": str(conf),
        "SPARK_WORKER_DIR": str(place / "work"),
    }


def session(place: Path, master: str = "local[2]", **more: str) -> Any:
    """A session, of this process, whose environment is as above."""
    from pyspark.sql import SparkSession

    conf = {
        **recommended_conf(),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.memory": "512m",
        # A session is short: what a JVM does for speed in the long run would cost more than all else.
        "spark.driver.extraJavaOptions": SHORT_LIVED,
        "spark.executor.extraJavaOptions": SHORT_LIVED,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.warehouse.dir": str(place / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        "spark.python.task.killTimeout": "60s",  # Else a task that outlives its query has two seconds.
        "spark.python.authenticate.socketTimeout": "240s",  # Else a Python that starts has fifteen.
        **more,
    }
    builder: Any = SparkSession.builder
    return builder.master(master).appName("mq tests").config(map=conf).getOrCreate()
