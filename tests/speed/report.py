"""The result of a run, and the JSON file that keeps it.

    {"layout": 1, "machine": {name: text}, "versions": {name: version}, "plan": "full",
     "finished": "2026-01-31T12:00Z",
     "rows": [{"name", "title", "against", "goal": {"bound", "value", "unit"} or null, "problem",
               "measurement": {"unit", "ours": [...], "peer": [...], "context": {...}} or null,
               "figure": median or null, "met": true, false or null}]}

`figure` and `met` follow from the rest and are there for readers of the file; loading ignores them.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.speed import table
from tests.speed.goal import Bound, Goal
from tests.speed.pairing import Measurement
from tests.speed.spread import median
from tests.speed.table import Row

LAYOUT = 1


@dataclass(frozen=True, slots=True)
class Report:
    machine: dict[str, str]
    versions: dict[str, str]
    plan: str
    finished: str
    rows: tuple[Row, ...]

    def text(self) -> str:
        return f"{self._head()}\n\n{table.text(self.rows)}\n\n{table.summary(self.rows)}"

    def markdown(self) -> str:
        return f"{self._head()}\n\n{table.markdown(self.rows)}\n\n{table.summary(self.rows)}."

    def save(self, path: Path) -> None:
        content = {
            "layout": LAYOUT,
            "machine": self.machine,
            "versions": self.versions,
            "plan": self.plan,
            "finished": self.finished,
            "rows": [_row_out(row) for row in self.rows],
        }
        path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")

    @classmethod
    def load(cls, path: Path) -> Report:
        content = json.loads(path.read_text())
        if content["layout"] != LAYOUT:
            raise ValueError(f"{path} has layout {content['layout']}, this program reads {LAYOUT}")
        rows = tuple(_row_in(row) for row in content["rows"])
        return cls(content["machine"], content["versions"], content["plan"], content["finished"], rows)

    def _head(self) -> str:
        machine = ", ".join(f"{name} {value}" for name, value in self.machine.items())
        versions = ", ".join(f"{name} {value}" for name, value in self.versions.items())
        return f"{self.finished}, plan {self.plan}. Machine: {machine}.\nVersions: {versions}."


def _row_out(row: Row) -> dict[str, Any]:
    out = asdict(row)
    if row.goal is not None:
        out["goal"]["bound"] = row.goal.bound.value
    out["figure"] = None if row.measurement is None else median(row.measurement.figures())
    out["met"] = row.met()
    return out


def _row_in(content: dict[str, Any]) -> Row:
    goal, measured = content["goal"], content["measurement"]
    return Row(
        content["name"],
        content["title"],
        content["against"],
        None if goal is None else Goal(Bound(goal["bound"]), goal["value"], goal["unit"]),
        None
        if measured is None
        else Measurement(
            measured["unit"], tuple(measured["ours"]), tuple(measured["peer"]), measured["context"]
        ),
        content["problem"],
    )
