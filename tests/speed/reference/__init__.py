"""The reference: memcpy into and out of a mapped file, and fdatasync of one page, in C.

Compiled on first use by cffi in API mode, as mq's own data plane is.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import sysconfig
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

NAME = "_speed_reference"
HERE = Path(__file__).resolve().parent
FLAGS = ["-std=gnu11", "-O3", "-Wall", "-Wextra", "-Werror"]


class ReferenceMap:
    """An allocated, mapped file. `touched`: its pages are there, clean and written once; or else fresh."""

    def __init__(self, module: ModuleType, path: Path, size: int, *, touched: bool) -> None:
        self._ffi, self._lib = module.ffi, module.lib
        self._size = size
        self._map: Any = self._ffi.new("reference_map *")
        self._check(self._lib.reference_open(self._map, os.fsencode(path), size, touched))

    def __enter__(self) -> ReferenceMap:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lib.reference_close(self._map)

    def append_each(self, record: bytes, count: int) -> int:
        """One bare call a record: what `send` is held against."""
        append, mapped, size = self._lib.reference_append, self._map, len(record)
        for _ in range(count):
            append(mapped, record, size)
        return count

    def fill_rate(self, record: bytes) -> float:
        """Bytes a second of copying `record` again and again into the whole map."""
        return self._size / float(self._lib.reference_fill(self._map, record, len(record)))

    def copy_out_rate(self, chunk_size: int) -> float:
        """Bytes a second of copying the whole map out, always into the same memory."""
        into = self._ffi.new("char[]", chunk_size)
        copied = self._size // chunk_size * chunk_size
        assert copied
        return copied / float(self._lib.reference_copy_out(self._map, into, chunk_size))

    def sync_times(self, count: int) -> list[float]:
        """Seconds of each of `count` flushes of one stored page."""
        seconds = self._ffi.new("double[]", count)
        self._check(self._lib.reference_sync(self._map, count, seconds))
        return list(seconds)

    def _check(self, result: int) -> None:
        if result < 0:
            raise OSError(-result, os.strerror(-result))


def load(cache: Path) -> ModuleType:
    """The compiled reference, built below `cache` if it is not there."""
    if NAME in sys.modules:
        return sys.modules[NAME]
    sources = [HERE / "reference.h", HERE / "reference.c"]
    suffix = str(sysconfig.get_config_var("EXT_SUFFIX"))
    build = " ".join([*FLAGS, suffix]).encode()
    digest = hashlib.sha256(build + b"".join(path.read_bytes() for path in sources)).hexdigest()
    directory = cache / f"reference-{digest[:12]}"
    binary = directory / f"{NAME}{suffix}"
    if not binary.exists():
        _build(directory)
    spec = importlib.util.spec_from_file_location(NAME, binary)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[NAME] = module
    return module


def _build(directory: Path) -> None:
    import cffi

    builder = cffi.FFI()
    builder.cdef((HERE / "reference.h").read_text())
    builder.set_source(
        NAME,
        '#include <stdint.h>\n#include "reference.h"',
        sources=[str(HERE / "reference.c")],
        include_dirs=[str(HERE)],
        extra_compile_args=FLAGS,
    )
    directory.mkdir(parents=True, exist_ok=True)
    builder.compile(tmpdir=str(directory))
