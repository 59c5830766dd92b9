"""The format "lasting": as "mq", but the tasks of its streams do not end when their query is stopped.

Beside the store such a task leaves the file writing once it has begun; it waits for the file go, writes on,
and leaves the file done.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mq.spark.datasource import MqDataSource
from mq.spark.sink.writers import StreamWriter, Written

TIMES = 5  # it writes its first batch so often again


class LastingSource(MqDataSource):
    @classmethod
    def name(cls) -> str:
        return "lasting"

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802 - the name is Spark's
        made = super().streamWriter(schema, overwrite)
        made.__class__ = LastingWriter
        return made


class LastingWriter(StreamWriter):
    def write(self, iterator: Iterator[Any]) -> Written:
        written = super().write(self._on_and_on(iterator))
        (self._place / "done").touch()
        return written

    def _on_and_on(self, iterator: Iterator[Any]) -> Iterator[Any]:
        batch = next(iterator)
        yield batch
        (self._place / "writing").touch()
        while not (self._place / "go").exists():
            time.sleep(0.01)
        for _ in range(TIMES):
            yield batch

    @property
    def _place(self) -> Path:
        return Path(self._store.path).parent
