"""The speed benchmark: mq beside its peers, as ratios taken in one run.

    python -m tests.speed                     every case; the peers are installed first
    python -m tests.speed --list              the cases and their goals
    python -m tests.speed --case send         the cases whose name is `send` or begins with `send/`
    python -m tests.speed --goals             the cases with a goal only
    python -m tests.speed --quick             short samples: everything runs, the figures mean little
    python -m tests.speed --json FILE         keeps the result; --from FILE prints a kept one again
    python -m tests.speed --markdown          the table as docs/performance.md shows it

How a figure comes about
- A case compares two things, or holds one thing against a fixed limit. The two run in turns, ours, peer,
  ours, peer; each turn on a fresh directory. A pair of turns gives one ratio, ours / peer, and the case's
  figure is the median of at least five of them. The first pair warms up and is dropped.
- Every case runs in a process of its own, one at a time, under a lock file; a case that dies
  costs its own row.
- Every peer runs in the fastest setting that we found at the same durability: `async` survives kill -9,
  `sync` survives a power cut. Where a peer promises less, its row says so.
- Data lies in build/speed/ of the checkout, on a real file system, and is removed afterwards.

Layout: spread, pairing, goal, table are pure; report, machine, install, workspace, processes, runner do the
work around a case; ours and peers/ are what is measured; reference/ is the machine itself, in C; cases/ is
the list.
"""
