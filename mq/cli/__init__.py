"""The `mq` command: a store directory from the shell.

Needs the extra `cli` (click and rich; textual for `top`). `import mq` alone loads neither, nor this package.
"""

import sys


def main() -> None:
    """Run the command with the arguments of this process, and exit with its status."""
    try:
        from mq.cli.command import run
    except ModuleNotFoundError as error:
        if error.name not in {"click", "rich"}:
            raise
        sys.exit(f'mq: the command line needs {error.name}; install it with: pip install "mq[cli]"')
    sys.exit(run(sys.argv[1:]))
