"""A process in which no thread can be started: the stack of one would need more memory than there may be."""

STACK_KIB = 64 << 20
MEMORY_KIB = 4 << 20


def without_threads(*command: str) -> list[str]:
    """The command line that runs this one so. RLIMIT_NPROC would do it as well, but not for root."""
    return ["sh", "-c", f'ulimit -S -s {STACK_KIB}; ulimit -v {MEMORY_KIB}; exec "$@"', "sh", *command]
