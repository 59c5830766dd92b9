"""Goals, verdicts, and how a row is shown and kept."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.speed import table
from tests.speed.goal import Goal, at_least, at_most
from tests.speed.pairing import Measurement
from tests.speed.report import Report
from tests.speed.table import Row, quantity

FASTER = Row(
    "send/sqlite",
    "send",
    "sqlite3 | WAL",
    at_least(2.5),
    Measurement("msg/s", (900e3, 1.1e6, 1.0e6), (300e3, 550e3, 200e3)),
)
OPENS = Row(
    "open",
    "open",
    "fixed limit",
    at_most(5, "ms"),
    Measurement("ms", (4.0, 9.0, 6.0), (), {"ours p99 ms": 12.5}),
)
ABSENT = Row("send/lmdb", "send", "LMDB", at_least(3), None, "lmdb not installed")
NO_GOAL = replace(FASTER, name="send/other", goal=None)
ROWS = (FASTER, OPENS, ABSENT, NO_GOAL)


@pytest.mark.parametrize(
    ("goal", "figure", "met"),
    [
        (at_least(2), 2.0, True),
        (at_least(2), 1.999, False),
        (at_most(5, "ms"), 5.0, True),
        (at_most(5, "ms"), 5.001, False),
    ],
)
def test_a_goal_is_met_up_to_its_bound(goal: Goal, figure: float, met: bool) -> None:
    assert goal.met_by(figure) is met


def test_a_goal_is_held_against_the_median_of_the_ratios() -> None:
    # Ratios 3, 2 and 5: the median is over the goal, the least is not, and neither are the medians' ratio.
    assert FASTER.met() is True
    assert OPENS.met() is False


def test_no_verdict_without_a_goal_or_a_measurement() -> None:
    assert ABSENT.met() is None
    assert NO_GOAL.met() is None


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (1_234_567, "msg/s", "1.23 Mmsg/s"),
        (45_678, "msg/s", "45.7 kmsg/s"),
        (2.5e9, "B/s", "2.5 GB/s"),
        (999, "msg/s", "999 msg/s"),
        (1500, "ns", "1.5 µs"),
        (1500, "µs", "1.5 ms"),
        (17.25, "µs", "17.2 µs"),
        (2.345, "x", "2.35x"),
        (1177.4, "B/msg", "1177 B/msg"),
    ],
)
def test_a_quantity_has_three_digits_and_a_unit_that_fits(value: float, unit: str, expected: str) -> None:
    assert quantity(value, unit) == expected


def test_the_text_table_shows_figure_range_verdict_and_context() -> None:
    lines = table.text(ROWS).splitlines()
    faster, opens, note = (
        next(line for line in lines if line.lstrip().startswith(key))
        for key in ("send/sqlite", "open", "ours p99")
    )
    assert [cell.strip() for cell in faster.split("  ") if cell.strip()] == [
        "send/sqlite", "send", "sqlite3 | WAL", "≥ 2.5x", "3x", "2-5", "yes", "1 Mmsg/s", "300 kmsg/s",
    ]  # fmt: skip
    assert "6 ms" in opens
    assert "4-9" in opens
    assert " no " in opens
    assert note.strip() == "ours p99 ms 12.5"


def test_columns_of_the_result_table_line_up() -> None:
    lines = [line for line in table.text(ROWS).splitlines() if not line.startswith("    ")]
    starts = {
        line.index(word)
        for line, word in zip(lines, ("goal", "-" * 6, "≥ 2.5x", "≤ 5 ms", "≥ 3x", "—"), strict=True)
        if word != "-" * 6
    }
    assert len(starts) == 1


def test_every_markdown_line_has_the_same_cells() -> None:
    lines = [line for line in table.markdown(ROWS).splitlines() if line.startswith("|")]
    assert len(lines) == 2 + len(ROWS)
    assert {line.replace("\\|", "").count("|") for line in lines} == {len(table.HEADINGS) + 1}


def test_what_did_not_run_is_said() -> None:
    assert "not measured: lmdb not installed" in table.text(ROWS)
    assert "- `send/lmdb`: not measured: lmdb not installed" in table.markdown(ROWS)


def test_the_summary_counts_goals_alone() -> None:
    assert table.summary(ROWS) == "1 of 3 goals met, 1 missed, 1 not measured"
    assert table.summary([FASTER]) == "1 of 1 goals met, 0 missed"


def test_a_report_comes_back_from_its_file(tmp_path: Path) -> None:
    report = Report({"python": "3.10"}, {"mq": "0.1"}, "full", "2026-01-31T12:00Z", ROWS)
    report.save(tmp_path / "result.json")
    assert Report.load(tmp_path / "result.json") == report


def test_a_report_of_another_layout_is_refused(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text('{"layout": 2}')
    with pytest.raises(ValueError, match="layout 2"):
        Report.load(tmp_path / "result.json")
