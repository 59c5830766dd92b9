"""What `import mq` loads, and that the names which are loaded later are visible.

What must not be loaded is named here; how long the import takes is not, since machines differ.
"""

import ast
import importlib
import json
import os
import pydoc
import subprocess
import sys
from pathlib import Path

import pytest

import mq

ROOT = Path(__file__).parent.parent

# What mq or one of its extras uses somewhere, and what takes long to load. One name a line would be a page.
LATER = {
    "asyncio", "cffi", "click", "concurrent.futures", "dataclasses", "datetime", "hashlib", "inspect",
    "json", "lark", "logging", "mq.aio", "mq.broker", "mq.cli", "mq.client", "mq.filter", "mq.spark",
    "mq.store", "mq.txn", "multiprocessing", "numpy", "pathlib", "pyarrow", "pyspark", "random", "rich",
    "shutil", "socket", "textual", "threading", "xxhash",
}  # fmt: skip
# What a program that sends and reads does without; laid out as above.
FOR_SOME = {
    "asyncio", "cffi", "click", "lark", "mq.aio", "mq.cli", "mq.client.pull_consumer",
    "mq.client.push_consumer", "mq.filter.sql", "mq.spark", "multiprocessing", "numpy", "pyarrow",
    "pyspark", "rich", "textual",
}  # fmt: skip
AT_WORK = """
with mq.open(sys.argv[1]) as broker, mq.Producer(broker) as producer:
    producer.send(mq.Message("orders", b"one", tags="paid"))
    messages = [m for q in broker.topic("orders").queues for m in q.read(0, expression="paid").messages]
    assert [message.body for message in messages] == [b"one"]
"""


def loaded_by(code: str, *arguments: str) -> set[str]:
    """The modules that an interpreter loads for the code, besides those that it begins with."""
    program = f"""
import sys
before = set(sys.modules)
{code}
loaded = set(sys.modules) - before
import json
print(json.dumps(sorted(loaded)))
"""
    # -S: what site loads differs from one installation to the next.
    paths = [str(ROOT), *(path for path in sys.path if path.endswith("-packages"))]
    printed = subprocess.run(
        [sys.executable, "-S", "-c", program, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout
    return set(json.loads(printed))


def test_import_mq_loads_nothing_that_only_its_use_needs() -> None:
    assert sorted(loaded_by("import mq") & LATER) == []


def test_sending_and_reading_loads_nothing_that_only_others_need(tmp_path: Path) -> None:
    assert sorted(loaded_by(f"import mq{AT_WORK}", str(tmp_path / "store")) & FOR_SOME) == []


TREE = ast.parse((ROOT / "mq/__init__.py").read_text())
# The module of each name that is loaded when it is first used: what mq/__init__.py calls _MODULES.
[LOADED_LATER] = [
    ast.literal_eval(node.value)
    for node in TREE.body
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_MODULES"
]


def test_type_checkers_see_each_name_where_it_is_loaded_from() -> None:
    [checked] = [
        node for node in TREE.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    seen = {
        alias.name: node.module
        for node in checked.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == {**LOADED_LATER, "aio": "mq", "remoting": "mq", "spark": "mq"}
    assert seen.keys() - {"aio", "remoting", "spark"} <= set(mq.__all__)


def test_every_public_name_is_there_for_dir_help_and_import_star() -> None:
    program = f"""
import mq
assert set(mq.__all__) <= set(dir(mq))
assert not set({list(LOADED_LATER)}) & set(vars(mq))
exec("from mq import *")
print(sorted(set(mq.__all__) - set(globals())))
"""
    printed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert printed.stdout == "[]\n"
    page = pydoc.plain(pydoc.render_doc(mq))
    assert [name for name in mq.__all__ if name not in page] == []
    for name, module in LOADED_LATER.items():
        assert getattr(mq, name) is getattr(importlib.import_module(module), name)


def test_a_name_that_there_is_not_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'mq' has no attribute 'Prodcuer'"):
        getattr(mq, "Prodcuer")  # noqa: B009 - a type checker knows that there is no such name
    assert not hasattr(mq, "Prodcuer")


def test_a_first_use_without_a_descriptor_left_is_named(tmp_path: Path) -> None:
    program = """
import os, resource, sys
import mq
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
taken = []
try:
    while True: taken.append(os.open("/dev/null", os.O_RDONLY))
except OSError: pass
try:
    mq.open(sys.argv[1])
except mq.InsufficientResources as error:
    resource_short = error.resource
for fd in taken: os.close(fd)
mq.open(sys.argv[1]).close()
print(resource_short)
"""
    printed = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "store")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (printed.stdout, printed.stderr) == ("descriptors\n", "")


@pytest.mark.parametrize("package", ["aio", "api", "client", "errors", "filter", "txn"])
def test_a_package_of_mq_is_there_when_it_is_named(package: str) -> None:
    program = f"import mq; assert mq.{package}.__name__ == 'mq.{package}'; assert not hasattr(mq, 'nonsense')"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_files_are_made_by_a_process_that_has_loaded_no_store(tmp_path: Path) -> None:
    program = (
        "import sys; from mq.store.directory.owner import made_file\n"
        "with made_file(sys.argv[1]): print('made')"
    )
    printed = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "file"], capture_output=True, text=True, check=True
    ).stdout
    assert printed == "made\n"
