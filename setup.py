"""What pyproject.toml cannot say: the two C extensions, of which cffi builds one, and the package by which
Spark finds the data source."""

import os
import shutil
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_py import build_py

STRICT = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter", "-fvisibility=hidden"]
CHECKED = ["-O1", "-g", "-UNDEBUG", "-fno-omit-frame-pointer", "-fsanitize=address,undefined"]
is_checked = os.environ.get("MQ_BUILD") == "sanitize"
# Objects that Python makes once a message; they call what cffi builds through its addresses.
PARTS = (
    "objects",
    "messages",
    "results",
    "append_pull",
    "delayed_append",
    "sender",
    "batch",
    "transactions",
    "transaction_send",
    "guards",
    "held",
    "hand_over",
    "waits",
    "keyed_append",
)
objects = Extension(
    "mq.fastpath._objects",
    sources=[f"mq/fastpath/{part}.c" for part in PARTS],
    include_dirs=["mq/fastpath", "mq/store/native"],
    depends=["mq/fastpath/objects.h", *map(str, Path("mq/store/native").glob("*/*.h"))],
    define_macros=[("_GNU_SOURCE", None)],
    extra_compile_args=[*STRICT, *(CHECKED if is_checked else ["-O3"])],
    extra_link_args=["-fsanitize=address,undefined"] if is_checked else [],
    py_limited_api=True,
)


class WithDiscovered(build_py):
    """Puts mq/spark/pyspark_entry.py where Spark looks: a package pyspark_mq beside mq, editable or not."""

    def run(self) -> None:
        if not self.editable_mode:
            # Files of an earlier build would get into the wheel.
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()
        place = self.get_finalized_command("install").install_lib if self.editable_mode else self.build_lib
        package = Path(place, "pyspark_mq")
        package.mkdir(parents=True, exist_ok=True)
        self.copy_file("mq/spark/pyspark_entry.py", str(package / "__init__.py"))

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        """The modules to install: all but the one that builds the C code, which is not installed either."""
        found = super().find_package_modules(package, package_dir)
        return [module for module in found if module[:2] != ("mq.store.native", "build")]


setup(
    cffi_modules=["mq/store/native/build.py:ffibuilder"],
    ext_modules=[objects],
    cmdclass={"build_py": WithDiscovered},
    # One wheel for all Pythons from this one on, as both extensions are.
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
