"""`python -m tests.support.cluster`: the replay example on a real cluster, with a broker killed in mid-run.

A name server and two brokers of RocketMQ, all from Maven Central, which takes a minute the first time. When
the example is under way, one broker is killed, and started again some seconds later. The exit status is the
example's: 0 if every event is accounted for. With --serve the servers alone run, until Ctrl-C. What they
write is deleted at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import mq
from tests.support.cluster.cluster import Cluster
from tests.support.cluster.programs import program
from tests.support.cluster.settings import BrokerPlan
from tests.support.cluster.shared import ROOT
from tests.support.maven import MavenUnavailable

TOPIC = "changes"  # of the example
KILL_AFTER = 300  # messages that were sent
AWAY_SECONDS = 5.0
STOP_SECONDS = 30.0

Say = Callable[[str], None]


def main() -> int:
    """Run the example, or the servers alone until SIGINT or SIGTERM comes; the exit status."""
    parser = argparse.ArgumentParser(prog="./run cluster", description=__doc__.split("\n")[0])
    parser.add_argument("--version", choices=["5.3", "4.9"], default="5.3", help="RocketMQ's line (5.3)")
    parser.add_argument("--serve", action="store_true", help="run the servers alone, until Ctrl-C")
    parser.add_argument("--input", metavar="FILE", help="recorded events (the history of this checkout)")
    options = parser.parse_args()
    ending = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ending.set())
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - began:5.1f} s] {text}", file=sys.stderr, flush=True)

    try:
        say(f"RocketMQ {options.version} from Maven Central: some 100 MB the first time, then from ~/.m2")
        program("servers", options.version)
    except MavenUnavailable as missing:
        print(f"run: {missing}", file=sys.stderr)
        return 1
    plans = [BrokerPlan(name, options.version, at_full_speed=options.serve) for name in ("a", "b")]
    with Cluster(plans, version=options.version, progress=say) as cluster:
        if options.serve:
            say("the name server knows both brokers; Ctrl-C ends them")
            return serve(cluster, ending, say)
        return replay(cluster, options.input, ending, say)


def serve(cluster: Cluster, ending: threading.Event, say: Say) -> int:
    """Wait for the end."""
    print(f"rocketmq://{cluster.name_server}", flush=True)
    while not ending.wait(1.0):
        for server in (*cluster.name_servers, *cluster.brokers.values()):
            if not server.running:
                print(f"run: {server.name} ended by itself:\n{server.said()}", file=sys.stderr)
                return 1
    say("ending")
    return 0


def replay(cluster: Cluster, recorded: str | None, ending: threading.Event, say: Say) -> int:
    """Run the example, and kill a broker when it is under way."""
    given = ["--input", recorded] if recorded else []
    command = [sys.executable, "-m", "examples.replay", "--cluster", cluster.name_server, *given]
    with subprocess.Popen(command, cwd=ROOT) as example:
        try:
            if wait_until(lambda: sent(cluster) >= KILL_AFTER, example, ending):
                victim = cluster.brokers["b"]
                say(f"{sent(cluster):,} events are sent: broker b is killed")
                victim.kill()
                ending.wait(AWAY_SECONDS)
                say("broker b is started again")
                victim.restart()
                say("broker b is back")
            wait_until(lambda: False, example, ending)
        finally:
            if example.poll() is None:
                example.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    example.wait(STOP_SECONDS)
                example.kill()
    return example.returncode


def wait_until(what: Callable[[], bool], example: subprocess.Popen[bytes], ending: threading.Event) -> bool:
    """Wait until it is so; False once the example has ended, or is to end."""
    while example.poll() is None and not ending.is_set():
        if what():
            return True
        ending.wait(0.1)
    return False


def sent(cluster: Cluster) -> int:
    """How many messages the brokers have."""
    with mq.open(f"rocketmq://{cluster.name_server}") as broker:
        try:
            return sum(queue.max_offset for queue in broker.topic(TOPIC).queues)
        except mq.MQError:
            return 0


if __name__ == "__main__":
    sys.exit(main())
