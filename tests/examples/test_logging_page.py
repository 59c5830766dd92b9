"""docs/logging.md names the loggers of the library, and no others."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def loggers_of(path: Path) -> set[str]:
    """The names for which a module calls getLogger."""
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("logging.getLogger", "getLogger"):
            (name,) = node.args
            found.add(str(name.value) if isinstance(name, ast.Constant) else module)
    return found


def test_the_page_names_every_logger_and_nothing_else() -> None:
    used = set().union(*(loggers_of(path) for path in (ROOT / "mq").rglob("*.py")))
    # Modules of Spark have loggers of their own below one name.
    used = {"mq.spark" if name.startswith("mq.spark.") else name for name in used}
    rows = re.findall(r"^\| `(mq\.[a-z]+)` \|", (ROOT / "docs" / "logging.md").read_text(), re.MULTILINE)
    assert sorted(used) == sorted(rows)
