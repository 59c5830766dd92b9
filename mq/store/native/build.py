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
    "error.h",
    "owner.h",
    "hash.h",
    "record.h",
    "control.h",
    "mappedfiles.h",
    "commitlog.h",
    "transactions.h",
    "consumequeue.h",
    "columns.h",
    "bulk.h",
    "consumequeueext.h",
    "wait.h",
    "wakefilter.h",
    "spans.h",
    "index.h",
    "timerwheel.h",
    "timerlog.h",
    "timer.h",
    "slots.h",
)
SOURCES = (
    "linux.c",
    "fail.c",
    "hash.c",
    "record.c",
    "control.c",
    "queuetable.c",
    "owner.c",
    "duties.c",
    "mappedfiles.c",
    "uniqueid.c",
    "draft.c",
    "commitlog.c",
    "prepare.c",
    "flush.c",
    "consumequeue.c",
    "pull.c",
    "columns.c",
    "pen.c",
    "bulk.c",
    "wait.c",
    "wakefilter.c",
    "spans.c",
    "consumequeueext.c",
    "walk.c",
    "check.c",
    "index.c",
    "transactions.c",
    "halves.c",
    "timerwheel.c",
    "timerlog.c",
    "timerdue.c",
    "timerrecord.c",
    "timerlink.c",
    "timerdeliver.c",
    "timerrebuild.c",
    "timer.c",
    "slots.c",
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
    depends=[os.path.relpath(path) for path in HERE.glob("*.h")],
    define_macros=macros,
    extra_compile_args=compile_args,
    extra_link_args=link_args,
    py_limited_api=sys.implementation.name == "cpython",
)
