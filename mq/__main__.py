"""`python -m mq` is the `mq` command."""

from mq.cli import main

if __name__ == "__main__":
    main()
