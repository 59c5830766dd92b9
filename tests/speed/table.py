"""Rows of results as text for a terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.speed.goal import Goal
from tests.speed.pairing import Measurement
from tests.speed.spread import Spread, median

HEADINGS = ("case", "ours", "against", "goal", "median", "min-max", "met", "ours, absolute", "peer, absolute")


@dataclass(frozen=True, slots=True)
class Row:
    """One case after its run: measured, or the reason why not."""

    name: str
    title: str
    against: str
    goal: Goal | None
    measurement: Measurement | None
    problem: str = ""

    def met(self) -> bool | None:
        """Whether the goal is kept; None where there is none or nothing was measured."""
        if self.goal is None or self.measurement is None:
            return None
        return self.goal.met_by(median(self.measurement.figures()))

    def figure_unit(self) -> str:
        if self.measurement is None or self.measurement.peer:
            return "x"
        return self.measurement.unit


def text(rows: Sequence[Row]) -> str:
    """Aligned columns, then one line of context under every row that has some."""
    cells = [HEADINGS, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEADINGS))]
    lines = [_aligned(HEADINGS, widths), "  ".join("-" * width for width in widths)]
    for row, line in zip(rows, cells[1:], strict=True):
        lines.append(_aligned(line, widths))
        lines.extend(f"    {note}" for note in _notes(row))
    return "\n".join(lines)


def markdown(rows: Sequence[Row]) -> str:
    """The same table for docs/performance.md; what did not run and what else was seen follow as a list."""
    lines = ["| " + " | ".join(HEADINGS) + " |", "|" + "---|" * len(HEADINGS)]
    lines.extend("| " + " | ".join(_escaped(cell) for cell in _cells(row)) + " |" for row in rows)
    notes = [f"- `{row.name}`: {note}" for row in rows for note in _notes(row)]
    return "\n".join([*lines, "", *notes] if notes else lines)


def summary(rows: Iterable[Row]) -> str:
    """How many goals are met."""
    verdicts = [row.met() for row in rows if row.goal is not None]
    met, missed, unknown = (sum(verdict is wanted for verdict in verdicts) for wanted in (True, False, None))
    return f"{met} of {len(verdicts)} goals met, {missed} missed" + (
        f", {unknown} not measured" if unknown else ""
    )


def quantity(value: float, unit: str) -> str:
    """Three significant digits; rates with k and M, times in the unit that fits."""
    if unit.endswith("/s"):
        for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
            if value >= factor:
                return f"{_digits(value / factor)} {prefix}{unit}"
    if unit == "µs" and value >= 1e3:
        return f"{_digits(value / 1e3)} ms"
    if unit == "ns" and value >= 1e3:
        return f"{_digits(value / 1e3)} µs"
    return f"{_digits(value)} {unit}".rstrip() if unit != "x" else f"{_digits(value)}x"


def _cells(row: Row) -> tuple[str, ...]:
    goal = "—" if row.goal is None else str(row.goal)
    if row.measurement is None:
        return (row.name, row.title, row.against, goal, "—", "—", "not measured", "—", "—")
    figures, unit = Spread.of(row.measurement.figures()), row.figure_unit()
    spread = f"{_digits(figures.least)}-{_digits(figures.most)}"
    met = {True: "yes", False: "no", None: "—"}[row.met()]
    ours = quantity(median(row.measurement.ours), row.measurement.unit)
    peer = quantity(median(row.measurement.peer), row.measurement.unit) if row.measurement.peer else "—"
    return (row.name, row.title, row.against, goal, quantity(figures.median, unit), spread, met, ours, peer)


def _notes(row: Row) -> list[str]:
    notes = [f"not measured: {row.problem}"] if row.problem else []
    if row.measurement is not None and row.measurement.context:
        notes.append(", ".join(f"{name} {_digits(value)}" for name, value in row.measurement.context.items()))
    return notes


def _digits(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|")
