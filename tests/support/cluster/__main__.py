"""`python -m tests.support.cluster`: a name server and two brokers that run until Ctrl-C.

Everything comes from Maven Central, which takes a minute the first time. What the servers write is deleted at
the end.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time

from tests.support.cluster.cluster import Cluster
from tests.support.cluster.programs import program
from tests.support.cluster.settings import BrokerPlan
from tests.support.maven import MavenUnavailable


def main() -> int:
    """Run a cluster until SIGINT or SIGTERM comes; the exit status."""
    parser = argparse.ArgumentParser(prog="./run cluster", description=__doc__.split("\n")[0])
    parser.add_argument("--version", choices=["5.3", "4.9"], default="5.3", help="RocketMQ's line (5.3)")
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
    plans = [BrokerPlan(name, options.version, at_full_speed=True) for name in ("a", "b")]
    with Cluster(plans, version=options.version, progress=say) as cluster:
        say("the name server knows both brokers; Ctrl-C ends them")
        print(f"rocketmq://{cluster.name_server}", flush=True)
        while not ending.wait(1.0):
            for server in (*cluster.name_servers, *cluster.brokers.values()):
                if not server.running:
                    print(f"run: {server.name} ended by itself:\n{server.said()}", file=sys.stderr)
                    return 1
        say("ending")
    return 0


if __name__ == "__main__":
    sys.exit(main())
