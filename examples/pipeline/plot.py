"""The result as a picture: how the lines add up in the busiest modules, and when they were added and deleted.

Needs matplotlib.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from datetime import date
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

from examples.pipeline.sums import Sum

__all__ = ["plot"]

MODULE_COUNT = 8
MONTHS_FROM = 120  # days; of a shorter history the days are drawn, of others the months
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195", "#6b6b6b")
ADDED, DELETED = "#2c7fb8", "#d95f0e"
BESIDE: dict[str, Any] = {
    "loc": "upper left",
    "bbox_to_anchor": (1.0, 1.0),
    "fontsize": "small",
    "frameon": False,
    "alignment": "left",
}


def plot(sums: Mapping[tuple[str, str], Sum], path: Path) -> None:
    """Write the picture, as PNG, SVG or PDF by the name of the file. ImportError without matplotlib."""
    # By name: matplotlib says of itself half of what a type checker would ask.
    dates, figures, ticks = (import_module(f"matplotlib.{name}") for name in ("dates", "figure", "ticker"))
    date2num: Callable[[Any], Any] = dates.date2num

    begin, end = span(sums)
    figure = figures.Figure(figsize=(12, 7), layout="constrained")
    upper, lower = figure.subplots(2, sharex=True, height_ratios=(3, 1.2))
    for module, colour in zip(busiest(sums), COLOURS, strict=False):
        days, lines = course(sums, module)
        # Over a day it climbs, from one to the next it stays as it is, and so until the history ends.
        places = [place for day in date2num(days) for place in (day, day + 1)]
        heights = [height for ends in pairwise([0, *lines]) for height in ends]
        label = f"{module}: {lines[-1]:,}"
        upper.plot(
            [*places, date2num(end) + 1], [*heights, lines[-1]], color=colour, linewidth=1.6, label=label
        )
    changes = sum(one.changes for one in sums.values())
    figure.suptitle(f"Lines changed per module and day: {changes:,} changes of files, {begin} to {end}")
    module_count = len(modules(sums))
    busy = f"{MODULE_COUNT} busiest of {module_count} modules" if module_count > MODULE_COUNT else "modules"
    upper.set_ylabel("lines added and deleted, so far")
    upper.legend(title=f"{busy}: lines in all", **BESIDE)

    is_long = (end - begin).days >= MONTHS_FROM
    starts, added, deleted = course_of_all(sums, is_long)
    width, period = (27.0, "a month") if is_long else (0.8, "a day")
    for label, lines, colour in (
        ("added", added, ADDED),
        ("deleted", [-count for count in deleted], DELETED),
    ):
        lower.bar(date2num(starts), lines, width, align="edge", color=colour, label=label)
    lower.axhline(0, color="black", linewidth=0.6)
    lower.set_ylabel(f"lines {period}")
    lower.set_xlabel("date of the commit (UTC)")
    lower.legend(title="all modules", **BESIDE)

    locator = dates.AutoDateLocator(minticks=5, maxticks=14)
    lower.xaxis.set_major_locator(locator)
    lower.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))
    lower.set_xlim(date2num(starts[0]), date2num(end) + 1)
    for axes in (upper, lower):
        axes.yaxis.set_major_formatter(ticks.EngFormatter(sep=""))
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    upper.set_ylim(bottom=0)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def modules(sums: Mapping[tuple[str, str], Sum]) -> Counter[str]:
    """The number of changed lines in each module."""
    lines: Counter[str] = Counter()
    for (module, _), one in sums.items():
        lines[module] += one.added + one.deleted
    return lines


def busiest(sums: Mapping[tuple[str, str], Sum]) -> list[str]:
    return [module for module, _ in modules(sums).most_common(MODULE_COUNT)]


def span(sums: Mapping[tuple[str, str], Sum]) -> tuple[date, date]:
    """The first day and the last one."""
    days = {day for _, day in sums}
    return date.fromisoformat(min(days)), date.fromisoformat(max(days))


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


def course_of_all(
    sums: Mapping[tuple[str, str], Sum], by_month: bool
) -> tuple[list[date], list[int], list[int]]:
    """Days with changes, or the first days of months with changes; lines added and lines deleted in each."""
    added: Counter[date] = Counter()
    deleted: Counter[date] = Counter()
    for (_, day), one in sums.items():
        start = date.fromisoformat(day).replace(day=1) if by_month else date.fromisoformat(day)
        added[start] += one.added
        deleted[start] += one.deleted
    starts = sorted(added)
    return starts, [added[start] for start in starts], [deleted[start] for start in starts]
