"""The verbs of the `mq` command, one module each."""
