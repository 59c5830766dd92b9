"""A query from one topic to another, for tests that kill it: python pipeline.py STORE PLACE MASTER [once].

Says its JVM's process id on a line of its own once it runs.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.spark.session import session


def main(store: str, place: str, master: str, once: bool) -> None:
    more = {} if not master.startswith("local-cluster") else {"spark.executor.memory": "512m"}
    spark = session(Path(place), master, **more)
    spark.conf.set("spark.sql.streaming.stopTimeout", "20000")
    source = {"topic": "orders", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "300"}
    frame = spark.readStream.format("mq").options(**source, minPartitions="2").load(store)
    writer = frame.writeStream.format("mq").options(path=store, topic="results")
    writer = writer.option("checkpointLocation", f"{place}/checkpoint")
    if once:
        writer = writer.trigger(availableNow=True)
    query = writer.start()
    print(spark._jvm.java.lang.ProcessHandle.current().pid(), flush=True)
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], "once" in sys.argv)
