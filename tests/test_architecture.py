"""The tidy rules of this repository: which package may import which, how long a file may be, which names say
nothing.

Read as data: nothing here imports mq but the test of its public names.
"""

import ast
import inspect
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LINE_COUNT_MAX = 450
FUNCTION_LINE_COUNT_MAX = 60
LINE_SIZE_MAX = 110
FILE_COUNT_MAX = 16  # of a folder, headers of C too, beside its __init__.py
# Most units of log/ share the append lock, and its two internal headers: another folder would make these the
# interface between two folders.
FILE_COUNTS_MAX = {"mq/store/native/log": 19}
MEMORY_BROKER_LINE_COUNT_MAX = 920

# A package imports from lower floors, or from itself. Those of the lowest and of the highest floor know each
# other.
FLOORS = {
    "mq.message": 0,
    "mq.properties": 0,
    "mq.due_time": 0,
    "mq.sink_ledger": 0,
    "mq.compacted_topics": 0,
    "mq.names": 0,
    "mq.compression": 0,
    "mq.errors": 0,
    "mq.threads": 0,
    "mq.uninterrupted": 0,
    "mq.fastpath": 0,
    "mq.filter": 1,
    "mq.api": 2,
    "mq.store": 3,
    "mq.broker": 4,
    "mq.client": 5,
    "mq.txn": 6,
    "mq.aio": 6,
    "mq.remoting": 6,
    "mq.opening": 7,
    "mq.spark": 7,
    "mq.cli": 7,
    "mq.__main__": 7,
    "mq": 7,
}

# A name with one of these words hides a noun that has not been found yet.
EMPTY_WORDS = {
    "abstract",
    "base",
    "common",
    "constants",
    "default",
    "factory",
    "helper",
    "helpers",
    "impl",
    "inner",
    "manager",
    "misc",
    "service",
    "types",
    "util",
    "utils",
    "wrapper",
}


@cache
def kept(*patterns: str) -> tuple[Path, ...]:
    """The files under version control, and those that are about to be, that match."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *patterns],
        check=False,
        cwd=ROOT,
        capture_output=True,
    )
    if listed.returncode:  # An unpacked archive has no history to ask.
        names = [path for pattern in patterns for path in ROOT.glob(pattern.replace("*", "**/*", 1))]
    else:
        names = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    return tuple(sorted(path for path in names if path.is_file()))


def sources() -> tuple[Path, ...]:
    found = kept("mq/*.py")
    assert found
    return found


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def package_of(module: str) -> str:
    return ".".join(module.split(".")[:2])


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """The syntax tree of a file: its module, and all below it."""
    return tuple(ast.walk(ast.parse(path.read_text(), str(path))))


def module_of(path: Path) -> ast.Module:
    module = nodes(path)[0]
    assert isinstance(module, ast.Module)
    return module


@pytest.fixture(scope="module", autouse=True)
def forgets_what_it_parsed() -> Iterator[None]:
    """The trees are millions of objects, which every later test of this process would drag along."""
    yield
    for each in (nodes, imports):
        each.cache_clear()


@cache
def modules() -> frozenset[str]:
    return frozenset(module_name(source) for source in sources()) | {"mq.store.native._native"}


@cache
def imports(path: Path) -> tuple[tuple[int, str], ...]:
    """Line and full name of every module of mq that the file imports, inside functions too."""
    return tuple(found_imports(path))


def found_imports(path: Path) -> Iterator[tuple[int, str]]:
    for node in nodes(path):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            origin = node.module or ""
            names = [f"{origin}.{alias.name}" for alias in node.names]
            names = [name if name in modules() else origin for name in names]
        else:
            continue
        yield from ((node.lineno, name) for name in names if name == "mq" or name.startswith("mq."))


def test_a_package_imports_only_from_lower_floors() -> None:
    wrong = []
    for path in sources():
        importer = package_of(module_name(path))
        floor = FLOORS[importer]
        for line, imported in imports(path):
            below = FLOORS[package_of(imported)]
            is_known = importer == package_of(imported) or (
                below == floor and floor in {0, max(FLOORS.values())}
            )
            if below >= floor and not is_known:
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {importer} imports {imported}")
    assert wrong == []


def test_a_suite_imports_from_itself_and_from_support_only() -> None:
    """And from no module of tests, so that each of those stands alone."""
    suites = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir()} - {"support"}
    wrong = []
    for path in kept("tests/*.py"):
        of = path.relative_to(ROOT).parts[1]
        for node in nodes(path):
            if not isinstance(node, ast.Import | ast.ImportFrom):
                continue
            modules = [alias.name for alias in node.names]
            for name in [node.module or ""] if isinstance(node, ast.ImportFrom) else modules:
                parts = name.split(".")
                is_of_another = bool(set(parts[1:2]) & (suites - {of}))
                if parts[0] == "tests" and (is_of_another or parts[-1].startswith("test_")):
                    wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}: {name}")
    assert wrong == []


# Names with an underscore that Python and PySpark document, or give no other way to.
FOREIGN_NAMES = {"_current_frames", "_exit", "_gateway", "_jdf", "_jsq", "_jvm", "_replace"}
PRIVATE_COUNT_MAX = 24  # These put a failure, or another thread, between two steps of one class.


def private_names(path: Path) -> Iterator[tuple[int, str]]:
    """Where a test reaches for a name with one underscore that is not its own."""
    for node in nodes(path):
        if isinstance(node, ast.Attribute):
            is_own = isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}
            found = [] if is_own else [node.attr]
        elif isinstance(node, ast.ImportFrom):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("setattr", "getattr")):
            found = [str(each.value) for each in node.args if isinstance(each, ast.Constant)]
        else:
            continue
        for name in (each.rpartition(".")[2] for each in found):
            if re.match(r"_[^_]", name) and name not in FOREIGN_NAMES:
                yield node.lineno, name


def test_tests_reach_for_private_names_in_one_place() -> None:
    """That is tests/support/insides.py. A name that several tests need is added there."""
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in kept("tests/*.py")
        if not path.is_relative_to(ROOT / "tests/support")
        for line, name in private_names(path)
    ]
    assert len(found) <= PRIVATE_COUNT_MAX, found


def test_no_circle_joins_two_files() -> None:
    """To understand one of them takes all of them; imports for type checkers count too."""
    above = {
        module_name(path): {imported for _, imported in imports(path)} - {module_name(path)}
        for path in sources()
    }
    assert len(above) > 200
    # What imports no module that is left is taken away, until all that is left is in a circle or above one.
    # Then the same from the other end.
    for _ in range(2):
        while done := {name for name, imported in above.items() if not imported & above.keys()}:
            above = {name: imported for name, imported in above.items() if name not in done}
        below: dict[str, set[str]] = {name: set() for name in above}
        for name, imported in above.items():
            for each in imported & above.keys():
                below[each].add(name)
        above = below
    assert {name: sorted(imported) for name, imported in above.items()} == {}


def test_only_the_store_imports_the_native_module() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sources()
        if not module_name(path).startswith("mq.store")
        for line, imported in imports(path)
        if imported.startswith("mq.store.native")
    ]
    assert wrong == []


def test_the_broker_knows_no_sink() -> None:
    """The topics that it compacts, and by what rule, it takes from mq.compacted_topics."""
    below = tuple(name for name, floor in FLOORS.items() if 0 < floor < FLOORS["mq.spark"])
    wrong = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sources()
        if package_of(module_name(path)) in below
        for line, imported in imports(path)
        if imported == "mq.sink_ledger"
    ]
    assert wrong == []


def test_import_mq_loads_no_optional_dependency() -> None:
    wrong = []
    optional = {"click", "rich", "pyarrow", "lz4", "zstandard", "pyspark"}
    for path in sources():
        if module_name(path).startswith(("mq.cli", "mq.spark")):
            continue
        for statement in module_of(path).body:
            if isinstance(statement, ast.Import):
                names = {alias.name.split(".")[0] for alias in statement.names}
            elif isinstance(statement, ast.ImportFrom):
                names = {(statement.module or "").split(".")[0]}
            else:
                continue
            if names & optional:
                wrong.append(f"{path.relative_to(ROOT)}:{statement.lineno}")
    assert wrong == []


def test_a_file_is_one_concept_and_short() -> None:
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines())
        for path in kept("mq/*.py", "mq/*.c", "mq/*.h")
    }
    assert {name: length for name, length in lengths.items() if length > LINE_COUNT_MAX} == {}


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """Name and number of lines of every function of a file, in Python or C."""
    if path.suffix == ".py":
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node.name, (node.end_lineno or 0) - node.lineno + 1
        return
    # As clang-format leaves it: a function begins at the margin, its body ends with a brace there.
    body = re.compile(r"^\w[^;{}=]*?(\w+)\([^;{}]*\) \{\n.*?^\}$", re.MULTILINE | re.DOTALL)
    for found in body.finditer(path.read_text()):
        yield found[1], found[0].count("\n") + 1


def test_a_function_fits_on_a_screen() -> None:
    lengths = {
        f"{path.relative_to(ROOT)}: {name}": count
        for path in kept("mq/*.py", "mq/*.c", "mq/*.h")
        for name, count in functions(path)
    }
    assert len(lengths) > 2000
    assert {name: count for name, count in lengths.items() if count > FUNCTION_LINE_COUNT_MAX} == {}


def test_a_folder_can_be_overlooked() -> None:
    files = (path for path in kept("mq/*.py", "mq/*.c", "mq/*.h") if path.name != "__init__.py")
    folders = Counter(str(path.parent.relative_to(ROOT)) for path in files)
    limits = FILE_COUNTS_MAX
    too_many = {each: n for each, n in folders.items() if n > limits.get(each, FILE_COUNT_MAX)}
    assert too_many == {}


def test_the_smallest_broker_is_small() -> None:
    """What a second broker has to write is the measure of the border: see tests/support/memory."""
    files = kept("tests/support/memory/*.py")
    assert files
    assert sum(len(path.read_text().splitlines()) for path in files) <= MEMORY_BROKER_LINE_COUNT_MAX


def test_nobody_asks_a_broker_what_kind_it_is() -> None:
    """What only a directory can do is asked for by name: see mq.api.local.directory."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sources()
        if not module_name(path).startswith("mq.broker")
        for node in nodes(path)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in {"isinstance", "issubclass"}
        and "LocalBroker" in ast.unparse(node.args[1])
    ]
    assert found == []


def test_lines_of_c_fit_beside_those_of_python() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in kept("mq/*.c", "mq/*.h")
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if len(line) > LINE_SIZE_MAX
    ]
    assert wrong == []


def test_c_is_formatted() -> None:
    completed = subprocess.run(
        [Path(sys.executable).with_name("clang-format"), "--dry-run", "-Werror", *kept("mq/*.c", "mq/*.h")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr


def test_no_file_name_hides_a_noun() -> None:
    files = kept("mq/*", "tests/*.py", "examples/*.py")
    assert [str(path) for path in files if EMPTY_WORDS & set(path.stem.lower().split("_"))] == []


def test_no_class_name_hides_a_noun() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}"
        for path in sources()
        for node in nodes(path)
        if isinstance(node, ast.ClassDef)
        and EMPTY_WORDS & {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", node.name)}
    ]
    assert wrong == []


def test_every_module_opens_with_what_it_is() -> None:
    without = [
        str(path.relative_to(ROOT))
        for path in (*sources(), *kept("tests/*.py", "examples/*.py"))
        if path.read_text().strip() and not ast.get_docstring(module_of(path))
    ]
    assert without == []


def test_every_file_of_c_opens_with_what_it_is() -> None:
    files = kept("mq/*.c", "mq/*.h")
    assert files
    assert [str(path.relative_to(ROOT)) for path in files if not path.read_text().startswith("/* ")] == []


def test_no_leftovers() -> None:
    leftover = re.compile(
        r"\b(" + "TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b|^\s*(#|//|/\*|\*) *[-=*#]{4,}"
    )
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in kept("mq/*.py", "mq/*.c", "mq/*.h", "tests/*.py", "examples/*.py")
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if leftover.search(line)
    ]
    assert wrong == []


def test_a_silenced_check_has_its_reason_beside_it() -> None:
    silenced = re.compile(r"#\s*(noqa|type: *ignore|pragma|fmt: *off)(?P<rest>.*)")
    wrong = []
    for path in kept("mq/*.py", "tests/*.py", "examples/*.py", "setup.py"):
        lines = path.read_text().splitlines()
        for number, line in enumerate(lines, start=1):
            found = silenced.search(line)
            if found and path != Path(__file__):
                reason = re.sub(r"^(:\s*[A-Z]+\d+(,\s*[A-Z]+\d+)*|\[[\w, -]+\])", "", found["rest"]).strip(
                    " #:"
                )
                above = lines[number - 2].strip() if number > 1 else ""
                if not reason and not above.startswith("#"):
                    wrong.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    assert wrong == []


def test_every_public_name_exists_and_says_what_it_is() -> None:
    import mq

    assert len(set(mq.__all__)) == len(mq.__all__)
    undocumented = []
    for name in mq.__all__:
        thing = getattr(mq, name)
        if (inspect.isclass(thing) or inspect.isroutine(thing)) and not (thing.__doc__ or "").strip():
            undocumented.append(name)
    assert undocumented == []


NAMED_TEST = re.compile(r"`(tests/[\w/.-]+\.py)(?:::(\w+))?`")


def named_tests() -> list[tuple[str, str, str]]:
    """(document, file, test or empty) for every test that the documents name."""
    return [
        (document.name, found[1], found[2] or "")
        for document in kept("README.md", "docs/*.md")
        for found in NAMED_TEST.finditer(document.read_text())
    ]


def test_the_tests_that_the_documents_name_exist() -> None:
    missing = []
    for document, file, test in named_tests():
        path = ROOT / file
        if not path.is_file():
            missing.append(f"{document}: {file}")
        elif test and not re.search(rf"^\s*(async )?(def|class) {test}\b", path.read_text(), re.MULTILINE):
            missing.append(f"{document}: {file}::{test}")
    assert missing == []


@pytest.mark.parametrize("number", range(1, 9))
def test_every_promise_names_a_test_that_breaks_it(number: int) -> None:
    text = (ROOT / "docs/guarantees.md").read_text()
    sections = re.split(r"^## (?=\d+\. )", text, flags=re.MULTILINE)[1:]
    section = next(section for section in sections if section.startswith(f"{number}. "))
    assert NAMED_TEST.search(section) or "Not yet promised" in section


def missing_of_contributing(names: Iterable[str]) -> list[str]:
    """Those that CONTRIBUTING.md does not have in backquotes, whatever leads to them."""
    named = re.findall(r"`([^`\n]+)`", (ROOT / "CONTRIBUTING.md").read_text())
    known = {each.removeprefix("mq/").removeprefix("tests/").rstrip("/") for each in named}
    return sorted(set(names) - known)


def test_contributing_names_every_package_and_suite() -> None:
    modules = {"/".join(name.split(".")[1:]) for name in FLOORS} - {"", "__main__"}
    packages = {name if (ROOT / "mq" / name).is_dir() else f"{name}.py" for name in modules}
    suites = {path.name for path in (ROOT / "tests").iterdir() if list(path.glob("**/test_*.py"))}
    assert missing_of_contributing(packages | suites | {"support"}) == []


def test_contributing_names_every_c_unit_without_a_header_of_its_own() -> None:
    units = [path for path in kept("mq/store/native/*.c") if not path.with_suffix(".h").exists()]
    assert units
    assert missing_of_contributing(path.stem for path in units) == []


LINK = re.compile(r"\]\((?!https?:)([^)#]+)")


def test_links_between_the_documents_lead_somewhere() -> None:
    broken = [
        f"{document.name}: {target}"
        for document in kept("README.md", "docs/*.md")
        for target in LINK.findall(document.read_text())
        if not (document.parent / target).exists()
    ]
    assert broken == []


AT_WORK = """
import os, sys, mq
with mq.open(sys.argv[1]) as broker, mq.Producer(broker) as producer:
    topic = broker.create_topic("orders", 1)
    producer.send_async(mq.Message("orders", b"one")).result()
    assert topic.queues[0].read(0).messages[0].body == b"one"
    for fd in os.listdir("/proc/self/fd"):
        try:
            print(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:
            continue
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/children") as children:
                print("".join(f"child {child}\\n" for child in children.read().split()), end="")
        except (FileNotFoundError, ProcessLookupError):  # The thread ended.
            continue
"""


def test_a_broker_at_work_has_no_socket_and_no_child(directory: Path) -> None:
    completed = subprocess.run(
        [sys.executable, "-c", AT_WORK, directory],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    held = completed.stdout.splitlines()
    assert any(str(directory) in path for path in held)
    assert [path for path in held if path.startswith(("socket:", "child"))] == []
