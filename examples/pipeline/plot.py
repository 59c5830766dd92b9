"""The result as a picture: lines changed in the busiest modules, day by day. Needs matplotlib."""

from collections import Counter
from collections.abc import Mapping
from datetime import date
from pathlib import Path

from examples.pipeline.sums import Sum

__all__ = ["plot"]

MODULE_COUNT = 8


def plot(sums: Mapping[tuple[str, str], Sum], path: Path) -> None:
    """Write the picture, as PNG, SVG or PDF by the name of the file. ImportError without matplotlib."""
    from matplotlib.dates import date2num
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 5.5), layout="constrained")
    axes = figure.subplots()
    for module in busiest(sums):
        days, lines = course(sums, module)
        axes.step(date2num(days), lines, where="post", label=module)
    axes.xaxis_date()
    axes.set_title("Lines added and deleted, summed up")
    axes.set_ylabel("lines")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.grid(alpha=0.3)
    axes.legend(title=f"the {MODULE_COUNT} busiest modules" if len(modules(sums)) > MODULE_COUNT else None)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def modules(sums: Mapping[tuple[str, str], Sum]) -> Counter[str]:
    """Lines changed in each."""
    lines: Counter[str] = Counter()
    for (module, _), one in sums.items():
        lines[module] += one.added + one.deleted
    return lines


def busiest(sums: Mapping[tuple[str, str], Sum]) -> list[str]:
    return [module for module, _ in modules(sums).most_common(MODULE_COUNT)]


def course(sums: Mapping[tuple[str, str], Sum], module: str) -> tuple[list[date], list[int]]:
    """The days on which a module was changed, and how many lines had been changed in it by then."""
    days: list[date] = []
    lines: list[int] = []
    total = 0
    for day, one in sorted((day, one) for (name, day), one in sums.items() if name == module):
        total += one.added + one.deleted
        days.append(date.fromisoformat(day))
        lines.append(total)
    return days, lines
