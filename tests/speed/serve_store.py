"""The program `python -m tests.speed.serve_store DIR [HA_PORT]`: serves a directory until its input ends.

It prints one line: the addresses of its name server, its broker, and its HA port if there is one. Each line
of standard input is answered by one: how many messages it has given to clients so far.
"""

from __future__ import annotations

import sys

import mq
from mq.remoting import serve
from tests.speed.processes import allow_files


def main(directory: str, ha_port: int | None) -> None:
    """Serve on free ports of loopback."""
    allow_files()
    with (
        mq.open(directory) as broker,
        serve(broker, port=0, namesrv_port=0, ha_port=ha_port) as server,
    ):
        print(server.name_server, server.address, server.ha_address or "", flush=True)
        for _ in sys.stdin:
            print(server.traffic.pulled, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else None)
