"""What pyproject.toml cannot say: the two C extensions, of which cffi builds one."""

import os
from pathlib import Path

from setuptools import Extension, setup

STRICT = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter", "-fvisibility=hidden"]
CHECKED = ["-O1", "-g", "-UNDEBUG", "-fno-omit-frame-pointer", "-fsanitize=address,undefined"]
is_checked = os.environ.get("MQ_BUILD") == "sanitize"
# Objects that Python makes once a message; they call what cffi builds through its addresses.
PARTS = ("objects", "messages", "results", "calls", "aside", "sender", "batch", "transactions", "transactor")
objects = Extension(
    "mq.objects._objects",
    sources=[f"mq/objects/{part}.c" for part in PARTS],
    include_dirs=["mq/objects", "mq/store/native"],
    depends=["mq/objects/objects.h", *map(str, Path("mq/store/native").glob("*.h"))],
    define_macros=[("_GNU_SOURCE", None)],
    extra_compile_args=[*STRICT, *(CHECKED if is_checked else ["-O3"])],
    extra_link_args=["-fsanitize=address,undefined"] if is_checked else [],
    py_limited_api=True,
)

setup(cffi_modules=["mq/store/native/build.py:ffibuilder"], ext_modules=[objects])
