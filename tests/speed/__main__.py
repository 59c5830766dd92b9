"""The command: python -m tests.speed.

Exit status: 0 all goals met, 1 some missed or not measured, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import datetime as dt
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tests.speed import __doc__ as description
from tests.speed import install, machine
from tests.speed.plan import Plan
from tests.speed.progress import say
from tests.speed.report import Report
from tests.speed.workspace import IN_MEMORY, ROOT, file_system, locked, peers_directory

if TYPE_CHECKING:
    from tests.speed.cases.case import Case


def main() -> int:
    arguments = _arguments()
    if arguments.kept:
        return _print(Report.load(arguments.kept), arguments.markdown)

    # Cases import mq and the peers, which are not there before they are installed.
    install.use(peers_directory())
    from tests.speed.cases import chosen

    try:
        cases = [case for case in chosen(arguments.case) if case.goal is not None or not arguments.goals]
    except KeyError as unknown:
        print(f"no case {unknown}; --list names them all", file=sys.stderr)
        return 2
    if arguments.list:
        for case in cases:
            print(f"{case.name:24} {case.goal or '—'!s:12} {case.title}, against {case.against}")
        return 0

    ROOT.mkdir(parents=True, exist_ok=True)
    if file_system(ROOT) in IN_MEMORY:
        print(f"{ROOT} is in memory; the benchmark needs a disk", file=sys.stderr)
        return 2
    # Ended by a signal, it removes its data as it does at the end.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    with locked():
        report = _run(cases, arguments.quick, arguments.json)
    return _print(report, arguments.markdown)


def _run(cases: list[Case], quick: bool, kept: Path | None) -> Report:
    """Run the cases; the report is kept after each, so that a run cut short is not lost."""
    from tests.speed import reference, runner

    install.install_missing(peers_directory())
    reference.load(ROOT)
    described = machine.describe()
    if float(described["load before"]) > 0.5:
        say(f"the machine is not idle (load {described['load before']}): figures will be off")
    versions = install.versions()
    report = Report(described, versions, "quick" if quick else "full", _now(), ())
    for row in runner.run(cases, Plan.quick() if quick else Plan.full()):
        report = replace(report, finished=_now(), rows=(*report.rows, row))
        if kept:
            report.save(kept)
    return report


def _now() -> str:
    return dt.datetime.now(dt.timezone.utc).strftime("%Y-%m-%dT%H:%MZ")


def _print(report: Report, markdown: bool) -> int:
    print(report.markdown() if markdown else report.text())
    return 0 if all(row.met() is not False and not row.problem for row in report.rows) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.speed",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--case", action="append", default=[], metavar="NAME", help="a case or a group; may repeat"
    )
    parser.add_argument("--list", action="store_true", help="name the cases and end")
    parser.add_argument("--goals", action="store_true", help="leave out the cases without a goal")
    parser.add_argument("--quick", action="store_true", help="short samples and small stores")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the result")
    parser.add_argument(
        "--from", dest="kept", type=Path, metavar="FILE", help="print a kept result, measure nothing"
    )
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
