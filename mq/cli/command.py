"""`mq DIR VERB`: the group of all verbs, and the mapping of errors to a line and an exit status.

Exit status: 0 done; 1 not found, problems found, or the store cannot do it now; 2 wrong usage;
130 interrupted; 141 the reader of the output went away.
"""

import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem, get_completion_class, shell_complete

import mq
from mq.cli.cluster_options import ClusterOptions, cluster_options, connection, parameter_names
from mq.cli.printing import visible
from mq.cli.session import Session
from mq.cli.verbs.bench import bench
from mq.cli.verbs.consume import consume
from mq.cli.verbs.copy import copy
from mq.cli.verbs.expire import expire
from mq.cli.verbs.groups import groups, reset
from mq.cli.verbs.network.replicate import replicate
from mq.cli.verbs.network.serve import serve
from mq.cli.verbs.read import query, show
from mq.cli.verbs.redrive import redrive
from mq.cli.verbs.retention import retention, settings
from mq.cli.verbs.send import send
from mq.cli.verbs.sinks import sinks
from mq.cli.verbs.tail import tail
from mq.cli.verbs.timers import recall, timers
from mq.cli.verbs.top import top
from mq.cli.verbs.topics import create, delete, topics
from mq.cli.verbs.transactions import transactions
from mq.cli.verbs.verify import verify

DONE, NO, WRONG_USAGE = 0, 1, 2
INTERRUPTED = 128 + signal.SIGINT
READER_GONE = 128 + signal.SIGPIPE
# The environment variable with which the script of --completion asks for candidates.
COMPLETE = "_MQ_COMPLETE"

# Errors in what the user typed, not in the state of the store.
_WRONG_USAGE = (
    mq.ConfigMismatch,
    mq.FilterSyntaxError,
    mq.GroupInvalid,
    mq.MessageInvalid,
    mq.TopicInvalid,
)


class _Verbs(click.Group):
    """The verbs in the order in which a new user meets them; options may come before or after DIR."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        place = self._options_end(args, 0)
        end = self._options_end(args, place + 1)
        args = [*args[:place], *args[place + 1 : end], *args[place : place + 1], *args[end:]]
        return super().parse_args(ctx, args)

    def _options_end(self, args: Sequence[str], begin: int) -> int:
        """Where the options end that begin there."""
        options = [each for each in self.params if isinstance(each, click.Option)]
        with_value = {name for each in options if not each.is_flag for name in each.opts}
        end = begin
        while end < len(args) and args[end].startswith("-"):
            end += 2 if args[end] in with_value else 1
        return end

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        target = ctx.params.get("target")
        if args[0] not in self.commands and isinstance(target, str) and target in self.commands:
            command = " ".join(["mq", args[0], target, *args[1:2]])
            raise click.UsageError(f"DIR comes first, then the verb: {visible(command)} ...", ctx)
        return super().resolve_command(ctx, args)


def _directories(_context: click.Context, _argument: click.Parameter, begun: str) -> list[CompletionItem]:
    """Let the shell complete DIR with the names of directories."""
    return [CompletionItem(begun, type="dir")]


def _print_completion(context: click.Context, _option: click.Parameter, shell: str | None) -> None:
    if shell is None or context.resilient_parsing:
        return
    completion = get_completion_class(shell)
    assert completion is not None, shell
    click.echo(completion(command, {}, "mq", COMPLETE).source())
    context.exit()


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="mq", prog_name="mq")
@click.option(
    "--completion",
    type=click.Choice(["bash", "zsh", "fish"]),
    expose_value=False,
    is_eager=True,
    callback=_print_completion,
    help="Print the completion script for this shell.",
)
@click.argument("target", metavar="DIR", shell_complete=_directories)
@click.option("--json", is_flag=True, help="Print one JSON object a line.")
@cluster_options()
@click.pass_context
def command(context: click.Context, /, target: str, json: bool, **given: Any) -> None:
    """Messages in the store directory DIR, or on a cluster: DIR is rocketmq://HOST:PORT then.

    DIR comes first, then the verb: mq var/orders send orders hello

    The options other than --json are for a cluster. They stand before the verb.
    """
    context.obj = Session(target, json, _connection(context, target, given))


def _connection(context: click.Context, target: str, given: dict[str, Any]) -> ClusterOptions:
    """How to connect to the cluster. A directory has no use for it, except to copy to a cluster: then the
    environment is ignored, and an argument is a mistake."""
    if Session(target, False).is_remote or context.invoked_subcommand == copy.name:
        return connection(given, os.environ) or ClusterOptions()
    for name in parameter_names():
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(
                f"--{name.replace('_', '-')} is for a cluster, and {target} is a directory"
            )
    return ClusterOptions()


for verb in (
    *(topics, create, delete, send, tail, query, show),
    *(timers, recall),
    *(groups, consume, reset, redrive, transactions, sinks, top, serve),
    *(verify, retention, settings, expire, copy, replicate, bench),
):
    command.add_command(verb)

_CLUSTER_OPTIONS = {f"--{name.replace('_', '-')}" for name in parameter_names()}


def _have_streams() -> None:
    """Open /dev/null for each standard stream that the caller closed. Otherwise a file of the store gets its
    number, and what is printed goes there."""
    for fd, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDONLY if mode == "r" else os.O_WRONLY)
            if null != fd:
                os.dup2(null, fd)
                os.close(null)
            setattr(sys, name, os.fdopen(fd, mode))


def run(arguments: Sequence[str]) -> int:
    """Run one command line; returns the exit status. Errors are one line on standard error."""
    _have_streams()
    if asked := os.environ.get(COMPLETE):
        return shell_complete(command, {}, "mq", COMPLETE, asked)
    try:
        with command.make_context("mq", list(arguments)) as context:
            status = command.invoke(context)
        sys.stdout.flush()
    except BrokenPipeError:
        _forget_output()
        return READER_GONE
    except KeyboardInterrupt:
        return INTERRUPTED
    except click.exceptions.Exit as finished:
        return finished.exit_code
    except click.ClickException as error:
        if isinstance(error, click.NoSuchOption) and error.option_name in _CLUSTER_OPTIONS:
            text = f"{error.option_name} stands before the verb: mq DIR {error.option_name} ..."
            error = click.UsageError(text, error.ctx)
        error.show()
        return error.exit_code
    except mq.MQError as error:
        return _refuse(error, WRONG_USAGE if isinstance(error, _WRONG_USAGE) else NO)
    except OSError as error:
        return _refuse(error, NO)
    except (TypeError, ValueError) as error:
        # The library raises it for an argument out of bounds, such as a queue count of 0.
        return _refuse(error, WRONG_USAGE)
    return status if isinstance(status, int) else DONE


def _refuse(error: Exception, status: int) -> int:
    if isinstance(error, OSError) and error.strerror and error.filename:
        text = f"{error.filename}: {error.strerror}"
    else:
        text = str(error) or type(error).__name__
    # The error of a filter expression marks the position on lines of its own.
    click.echo("mq: " + "\n".join(map(visible, text.split("\n"))), err=True)
    return status


def _forget_output() -> None:
    """Keep the interpreter from reporting the closed pipe again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
