"""The main job of transactions and time: orders with deadlines for payment, in processes that are killed.

    python -m examples.orders                      10,000 orders in 4 processes, each kind killed 25 times
    python -m examples.orders --orders 1000 --rounds 1 --minute 0.05

Two sellers accept orders, two offices process them (seller.py, office.py). Every change of the shop's
database is committed together with a message about it (examples/outbox.py). Alarms for deadlines, and later
transfers of the bank, are delayed messages. An unpayable order ends as a dead letter. Meanwhile sellers and
offices are killed with kill -9, at any moment and at each point of a transaction, and replaced.

At the end the databases and the topics are compared with the model (model.py), which computes the expected
result from the same orders without mq. Exit status 1 if anything differs.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table

from examples.orders.account import Found, found, verdict
from examples.orders.model import expected
from examples.orders.plan import CHECKED_AFTER, KILL_POINTS, Plan
from examples.orders.shop import Shop
from examples.orders.supervisor import KINDS, Status, Supervisor

MINUTE_MIN = 0.01


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="orders", description="Orders with deadlines, in 4 processes that are killed."
    )
    parser.add_argument(
        "--orders", type=int, default=10_000, metavar="N", help="how many (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=4, metavar="N", help="of the orders and the kills")
    parser.add_argument(
        "--minute",
        type=float,
        default=0.1,
        metavar="SECONDS",
        help="that a minute of the shop takes; an order is to be paid in 30 of them (default: %(default)s)",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=5,
        metavar="N",
        help=f"kills of each kind of process in each of {len(KILL_POINTS)} ways (default: %(default)s)",
    )
    parser.add_argument("--directory", type=Path, metavar="DIR", help="a new one; by default temporary")
    arguments = parser.parse_args()
    if arguments.orders < 1 or arguments.rounds < 0:
        parser.error("--orders must be at least 1, and --rounds at least 0")
    if not MINUTE_MIN <= arguments.minute <= 60:
        parser.error(f"a minute takes {MINUTE_MIN} to 60 seconds")
    if arguments.directory is not None and arguments.directory.exists():
        parser.error(f"{arguments.directory} exists already")
    with tempfile.TemporaryDirectory(prefix="mq-orders-") as scratch:
        directory = arguments.directory or Path(scratch)
        directory.mkdir(parents=True, exist_ok=True)
        plan = Plan(directory, arguments.seed, arguments.orders, arguments.minute)
        sys.exit(0 if run(plan, arguments.rounds) else 1)


def run(plan: Plan, rounds: int) -> bool:
    """Whether the result is the model's."""
    console = Console()
    world = plan.world()
    should = expected(world)
    supervisor = Supervisor(plan, rounds)
    supervisor.prepare()
    started = time.monotonic()
    with Live(console=console, auto_refresh=False) as live:
        supervisor.run(lambda status: live.update(progress(plan, status, started), refresh=True))
    seconds = time.monotonic() - started
    what_is = found(plan)
    statements = verdict(what_is, world, should)
    console.print()
    for statement, holds in statements.items():
        console.print(f"[green]holds[/] {statement}" if holds else f"[bold red]FAILS[/] {statement}")
    console.print(account(plan, what_is, supervisor))
    console.print(
        f"{plan.order_count:,} orders in {seconds:.1f} s, {plan.order_count / seconds:,.0f} a second"
    )
    return all(statements.values())


def progress(plan: Plan, status: Status, started: float) -> Table:
    orders, changes, open_ = status.progress
    placed = sum(orders.values())
    seconds = time.monotonic() - started
    table = Table(title=f"{placed:,} of {plan.order_count:,} orders, {seconds:.1f} s", title_justify="left")
    table.add_column("orders")
    table.add_column("", justify="right")
    table.add_column("lag of")
    table.add_column("", justify="right")
    table.add_column("killed")
    table.add_column("", justify="right")
    left = [(state, f"{orders.get(state, 0):,}") for state in ("placed", "paid", "cancelled", "unpayable")]
    left += [("still to come", f"{open_:,}"), ("in the books", f"{status.written:,} of {changes:,}")]
    middle = [(group, f"{lag:,}") for group, lag in status.lag.items()]
    right = [(kind, str(sum(n for (k, _), n in status.kills.items() if k == kind))) for kind in KINDS]
    for row in range(max(len(left), len(middle), len(right))):
        cells = [column[row] if row < len(column) else ("", "") for column in (left, middle, right)]
        table.add_row(*(text for cell in cells for text in cell))
    return table


def account(plan: Plan, what_is: Found, supervisor: Supervisor) -> str:
    """A summary of the run."""
    with Shop(plan.shop) as shop:
        checks = shop.rows("SELECT is_sent, age_ms FROM checks")
        repeats = dict(shop.rows("SELECT name, times FROM repeats ORDER BY name"))
    kept = sum(is_sent for is_sent, _ in checks)
    ages = [age_ms for _, age_ms in checks]
    late = sorted(alarm.came_ms - alarm.due_ms for alarm in what_is.alarms)
    kills = [f"{kill} {sum(supervisor.kills[kind, kill] for kind in KINDS)}" for kill in KILL_POINTS]
    again = ", ".join(f"{times} to the {name}" for name, times in repeats.items())
    return f"""
{sum(supervisor.kills.values())} processes were killed with kill -9, and replaced: {", ".join(kills)}
{len(checks)} transactions were undecided after {CHECKED_AFTER:g} s and checked: the database had {kept}
    the last answer came {max(ages, default=0):,} ms after its message
{sum(repeats.values())} messages came again when all was done: {again or "none"}
{len(late):,} alarms came after they were due by {late[len(late) // 2]:,} ms (half of them), \
{late[len(late) * 99 // 100]:,} ms (99 of 100), {late[-1]:,} ms (all)"""


if __name__ == "__main__":
    main()
