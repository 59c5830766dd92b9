"""What pyproject.toml cannot say: the two C extensions, of which cffi builds one."""

import os

from setuptools import Extension, setup

# Objects that Python makes once a message; they call what cffi builds through its addresses.
STRICT = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter", "-fvisibility=hidden"]
CHECKED = ["-O1", "-g", "-UNDEBUG", "-fno-omit-frame-pointer", "-fsanitize=address,undefined"]
is_checked = os.environ.get("MQ_BUILD") == "sanitize"
objects = Extension(
    "mq.objects._objects",
    sources=["mq/objects/objects.c", "mq/objects/batch.c", "mq/objects/calls.c", "mq/objects/sender.c"],
    include_dirs=["mq/objects", "mq/store/native"],
    depends=["mq/objects/objects.h", "mq/store/native/commitlog.h", "mq/store/native/consumequeue.h"],
    define_macros=[("_GNU_SOURCE", None)],
    extra_compile_args=[*STRICT, *(CHECKED if is_checked else ["-O3"])],
    extra_link_args=["-fsanitize=address,undefined"] if is_checked else [],
    py_limited_api=True,
)

setup(cffi_modules=["mq/store/native/build.py:ffibuilder"], ext_modules=[objects])
