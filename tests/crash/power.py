"""Rounds of power cuts, as many as one likes: python -m tests.crash.power --rounds 20000 --jobs 2

Each round is a store on a disk that forgets (disk.py), with up to three lives, each ended by a power cut:
some writers, synchronous and asynchronous ones, and perhaps a reader that is shown what is on disk and
nothing else. They send messages, batches, and bulks of several files of the log. Now and then one of them
dies alone, perhaps while it opens the store, or all do, or all close, or the test deletes files that can be
rebuilt; old files of the log go. Or one stops in the middle of an append, the kernel writes back some of it,
and it dies there; so may the next one, in its repair. What is left is opened as after a reboot, by one
process that checks all of it, or by writers at once; and some of the images that the disk might have held at
any place of the life are laid out beside it and opened too (replay.py, images.py).

A round in which anything is wrong leaves all that it was made of in a directory, which the failure names:

    round.json      the choices, what is wrong, and what was found in all images of the life before
    state/          of the last life: journal, data, memory (inodes/), disk, and how to look into it
    life<n>/        the same of the life before
    trace<n> ...    what was acknowledged and seen, and how long the journal was then
    report          what the processes said
    failed_image/   the image that failed, if it was one

    python -m tests.crash.power --again DIRECTORY      looks into all images of these lives
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.crash.conftest import Crew, hire_with_recorder
from tests.crash.rounds import IMAGES, Counts, Lost, Round

CREW_ROUNDS = 500  # of the same parent process


@contextmanager
def _crew(directory: Path) -> Iterator[Crew]:
    yield from hire_with_recorder(directory)


def _again(directory: Path) -> int:
    """Look into all images of each life that a failed round has left."""
    failed = 0
    for path in sorted(directory.glob("*/arguments.json")):
        with tempfile.TemporaryDirectory() as work, _crew(Path(work)) as crew:
            arguments = json.loads(path.read_text())
            old_home = str(Path(arguments["root"]).parent)
            moved = json.loads(json.dumps(arguments["old"]).replace(old_home, str(directory)))
            new = json.loads(json.dumps(arguments["new"]).replace(old_home, str(directory)))
            answer = Path(work) / "answer"
            arguments.update(state=str(path.parent), old=moved, new=new)
            process = crew.nursery.start(
                "look_into", **arguments, answer=answer, budget=None, seed=0, seconds=3600.0
            )
            process.wait(7200)
            crew.nursery.forget(process)
            found = json.loads(answer.read_text())
            print(f"{path.parent}: {found['images']} images, {found['failed']} of them wrong")
            print("\n".join(found["wrong"][:10]), flush=True)
            failed += found["failed"]
    return 1 if failed else 0


def _one_job(arguments: argparse.Namespace) -> int:
    counts, lost, done, began = Counts(), 0, 0, time.monotonic()
    print(f"{arguments.rounds} rounds from MQ_POWER_SEED={arguments.seed} on", flush=True)

    def tell() -> None:
        print(f"[{time.monotonic() - began:6.0f} s] {counts}; {lost} lost", flush=True)

    while done < arguments.rounds:
        with tempfile.TemporaryDirectory(dir=arguments.work) as directory, _crew(Path(directory)) as crew:
            until = min(done + CREW_ROUNDS, arguments.rounds)
            while done < until:
                work = Path(directory) / str(done)
                try:
                    seed = arguments.seed + done
                    Round(crew, work, seed, image_count=arguments.images, counts=counts).play()
                except Lost as error:
                    lost += 1
                    print(f"LOST: {error}", flush=True)
                shutil.rmtree(work)
                done += 1
                if done % 50 == 0:
                    tell()
    tell()
    return 1 if lost else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.power", description="Rounds of power cuts.")
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side, each with its share")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000_000)
    parser.add_argument("--images", type=int, default=IMAGES, help=f"of each life ({IMAGES})")
    parser.add_argument("--work", help="directory to work in, best in memory (/dev/shm)")
    parser.add_argument("--again", type=Path, metavar="DIRECTORY", help="what a failed round has left")
    arguments = parser.parse_args()
    if arguments.again:
        return _again(arguments.again)
    if arguments.work:
        Path(arguments.work).mkdir(parents=True, exist_ok=True)
    if arguments.jobs == 1:
        return _one_job(arguments)
    share = -(-arguments.rounds // arguments.jobs)
    common = ["--rounds", str(share), "--images", str(arguments.images)]
    common += ["--work", arguments.work] if arguments.work else []
    jobs = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.crash.power",
                *common,
                "--seed",
                str(arguments.seed + number * share),
            ]
        )
        for number in range(arguments.jobs)
    ]
    return max(job.wait() for job in jobs)


if __name__ == "__main__":
    sys.exit(main())
