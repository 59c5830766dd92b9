"""Builds the data plane with cffi in API mode.

The headers that the C compiler includes are the very text that `cdef` reads, so nothing is
declared twice. Three builds of one source:

    (default)            -O3, the extension that is installed
    MQ_BUILD=fail        with the fail points of fail.h, for the crash tests
    MQ_BUILD=sanitize    with fail points, assertions, and the address and undefined-behaviour sanitizers
"""

import os
import sys
from pathlib import Path

from cffi import FFI

HERE = Path(__file__).parent
HEADERS = (
    "base/error.h",
    "base/owner.h",
    "base/hash.h",
    "log/record.h",
    "control/control.h",
    "base/mappedfiles.h",
    "log/commitlog.h",
    "transactions/transactions.h",
    "queue/consumequeue.h",
    "queue/columns.h",
    "log/multi_append.h",
    "queue/extensions.h",
    "control/wait.h",
    "control/wake_filter.h",
    "queue/queue_ranges.h",
    "queue/queue_files.h",
    "queue/unit_repair.h",
    "index/index.h",
    "timer/timer_wheel.h",
    "timer/timer_log.h",
    "timer/timer.h",
    "control/group_slots.h",
    "control/replication.h",
    "log/follow.h",
    "dedup/xxh3.h",
    "dedup/dedup_table.h",
    "dedup/keyed_append.h",
)
SOURCES = (
    "base/linux.c",
    "base/fail.c",
    "base/hash.c",
    "log/record.c",
    "control/control.c",
    "control/queue_table.c",
    "base/owner.c",
    "control/duties.c",
    "base/mappedfiles.c",
    "log/unique_id.c",
    "log/record_builder.c",
    "log/commitlog.c",
    "log/repair.c",
    "log/append.c",
    "log/preallocate.c",
    "log/flush.c",
    "queue/consumequeue.c",
    "queue/oldest.c",
    "queue/pull.c",
    "queue/columns.c",
    "base/sequential_writer.c",
    "log/multi_append.c",
    "control/wait.c",
    "control/wake_filter.c",
    "queue/queue_ranges.c",
    "queue/queue_files.c",
    "queue/unit_repair.c",
    "queue/extensions.c",
    "log/log_scan.c",
    "log/check.c",
    "index/index.c",
    "transactions/transactions.c",
    "transactions/half_message.c",
    "timer/timer_wheel.c",
    "timer/timer_log.c",
    "timer/due_heap.c",
    "timer/timer_record.c",
    "timer/enqueue.c",
    "timer/deliver.c",
    "timer/rebuild.c",
    "timer/timer.c",
    "control/group_slots.c",
    "control/replication.c",
    "log/follow.c",
    "dedup/xxh3.c",
    "dedup/dedup_table.c",
    "dedup/keyed_append.c",
)

kind = os.environ.get("MQ_BUILD", "")
compile_args = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter", "-fvisibility=hidden"]
link_args: list[str] = ["-pthread"]
macros: list[tuple[str, str | None]] = [("_GNU_SOURCE", None)]
if kind in ("fail", "sanitize"):
    macros.append(("MQ_FAIL_POINTS", None))
if kind == "sanitize":
    compile_args += ["-O1", "-g", "-UNDEBUG", "-fno-omit-frame-pointer", "-fsanitize=address,undefined"]
    compile_args += ["-fno-sanitize-recover=undefined"]
    link_args += ["-fsanitize=address,undefined"]
else:
    compile_args += ["-O3"]

ffibuilder = FFI()
for header in HEADERS:
    ffibuilder.cdef((HERE / header).read_text())
ffibuilder.set_source(
    "mq.store.native._native",
    "\n".join(f'#include "{header}"' for header in ("stdint.h", *HEADERS)),
    sources=[os.path.relpath(HERE / source) for source in SOURCES],
    include_dirs=[os.path.relpath(HERE)],
    depends=[os.path.relpath(path) for path in HERE.glob("*/*.h")],
    define_macros=macros,
    extra_compile_args=compile_args,
    extra_link_args=link_args,
    py_limited_api=sys.implementation.name == "cpython",
)
