"""The command `fedvi`: finds its subcommands, and says what went wrong. A new command is one new file.

Nothing heavy is imported here: `--help` and `--version` start without JAX.
"""

import gc
import importlib
import io
import keyword
import os
import sys
from types import ModuleType
from typing import Any

import click

import fedvi
from fedvi import errors, plugins

__all__ = ["main"]

# Before grpc is imported, which reads this once: it writes a line about every port scan.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
# For each cached program XLA warns, in 2,000 characters, that this processor lacks "prefer-no-gather": that
# is a setting of the compiler, and no feature of a processor. Errors are raised all the same. JAX itself
# sets 1, which a process that it starts inherits.
if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1") == "1":
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
# Before NumPy is imported. On cores that other work is using, threads of OpenBLAS take 25 ms for an inverse
# of 100 columns, which takes one thread 0.3 ms; and last bits would depend on the number of cores.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# As shells have it: 128 + SIGINT.
_INTERRUPTED = 130

# Command → one line of help. The file fedvi/cli/COMMAND.py defines a click command of that name.
_COMMANDS = {
    "init": "Draft a study of your own: study, policy, containers and the steps in order.",
    "data": "Inspect a table, alone or against a study; split one among simulated clients.",
    "check": "Validate a study and print what it would release, at what price. Reads no data.",
    "plan": "Predict how wide a study's intervals will be, from public numbers alone.",
    "ledger": "Show or verify what clients have spent, and recompute its price.",
    "privacy": "Price a study: noise for a target, ε by every accountant, and what it means.",
    "audit": "Test whether the code that a study runs keeps its promise. Reads no data by default.",
    "simulate": "Run a whole federation in this process and print the posterior and its price.",
    "sweep": "Simulate a study under several settings, several times each, in one table.",
    "evaluate": "Score a finished run's predictions on test records that are public, or yours.",
    "report": "Write a finished run as a page to read, print and sign; Markdown, JSON, CSV.",
    "posterior": "Show a finished run's posterior, or write it for ArviZ, NumPy, NumPyro or R.",
    "predict": "Predict new records from a finished run, with uncertainty.",
    "synthesise": "Write synthetic records drawn from a finished run, at no further privacy cost.",
    "client": "Take part in a federation as one of its sites, beside its records.",
    "server": "Run the server of a federation: it holds no record, and resumes after a restart.",
    "status": "Show a server's run: who is there, whom it awaits, what was charged.",
    "watch": "Follow what happens at a running server.",
    "pause": "Stop a running server from handing out tasks; answers are still taken.",
    "resume": "Let a paused server hand out tasks again.",
    "stop": "End a run for good, and tell its clients.",
    "admit": "Take a client into a run of masked sums that began without it.",
    "remove": "Take what a client contributed out of a running server's posterior, for good.",
    "health": "Check that a server, or a client, is up; for containers and scripts.",
    "ca": "Sign, renew and revoke certificates; list who may take part.",
    "enroll": "Make a party's key and certificate request; install the signed certificate.",
    "export": "Write tasks into signed files, for sites without a network to the server.",
    "import": "Take the signed results of sites without a network, and fold them in.",
    "backup": "Copy a server's state while it runs, and verify the copy.",
    "doctor": "Say why a client cannot reach the server, or what may soon go wrong.",
}


class _LazyGroup(click.Group):
    """Imports a command's file only when that command runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return _of_plug_in(ctx, cmd_name)
        # Python keeps some words for itself.
        name = f"{cmd_name}_" if keyword.iskeyword(cmd_name) else cmd_name
        return getattr(_imported(f"fedvi.cli.{name}"), name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        known = name in _COMMANDS or plugins.installed(plugins.COMMANDS, name) is not None
        if not known and not name.startswith("-") and not ctx.resilient_parsing:
            near = errors.did_you_mean(name, _COMMANDS).partition("known: ")[0]
            ctx.fail(f"no command {name!r}; {near}`fedvi --help` lists them")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        for stream in (sys.stdout, sys.stderr):
            # A result is not lost because a log's encoding has no ε.
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")
        try:
            # What a command's own flags allow ends with it.
            with plugins.allowing(_of_flags(ctx)):
                return super().invoke(ctx)
        except errors.FedviError as error:
            click.echo(f"error: {error}", err=True)
            sys.exit(error.exit_code)
        except ModuleNotFoundError as error:
            missing = (error.name or "").partition(".")[0]
            if missing in ("", "fedvi"):  # a fault of ours
                raise
            told = _not_here(missing)
            click.echo(f"error: {told}", err=True)
            sys.exit(told.exit_code)
        except (KeyboardInterrupt, click.Abort) as stop:
            # A question that is left by Ctrl-C is no answer; click makes an Abort of it.
            if isinstance(stop, click.Abort) and not isinstance(
                stop.__context__, KeyboardInterrupt
            ):
                raise
            click.echo("\nstopped by Ctrl-C", err=True)
            own = sys.__stdout__
            if own is not None and own is sys.stdout:  # a process of its own
                # To end the interpreter beneath a compilation is a segmentation fault, and its code.
                own.flush()
                os._exit(_INTERRUPTED)
            sys.exit(_INTERRUPTED)


def _not_here(module: str) -> errors.ConfigError:
    """Returns what to say where a command needs a module that is not installed."""
    return errors.ConfigError(
        f"this needs the Python module {module!r}, and it is not installed here",
        "an image built with `--target server` has only what a server needs: use the image `fedvi`; "
        "elsewhere, install fedvi with all its dependencies",
    )


def _of_flags(ctx: click.Context) -> plugins.OutsideCode:
    """Returns what the flags before a command's name allow, with the objects of a caller in Python."""
    before = plugins.allowed() or plugins.NOTHING
    return plugins.OutsideCode(before.given, dict.fromkeys(ctx.params.get("allow_code", ())))


def _of_plug_in(ctx: click.Context, name: str) -> click.Command | None:
    """Returns an installed command that was allowed before its name; None if nothing is installed.

    Raises:
      CodeRefused: nobody allowed it.
      ConfigError: it cannot be imported, or is no command.
    """
    entry = plugins.installed(plugins.COMMANDS, name)
    if entry is None or ctx.resilient_parsing:
        return None
    if name not in ctx.params.get("allow_code", ()):
        raise errors.CodeRefused(
            f"the command {name!r} is the installed plug-in {entry.value}, which nobody allowed here: "
            "nothing of it was run",
            f"read its code, then write: fedvi --allow-code {name} {name}",
        )
    found = plugins.loaded("the command", name, entry)
    if not isinstance(found, click.Command):
        raise errors.ConfigError(
            f"the command {name!r} is {type(found).__name__}, expected a click.Command",
            f"decorate {entry.value} with @click.command()",
        )
    return found


def _imported(module: str) -> ModuleType:
    """Imports a command's file, and lets JAX keep the programs of one that runs any."""
    if module in sys.modules:
        return sys.modules[module]
    # Collections would find nothing to free, and take a third of the time of all imports.
    was_collecting = gc.isenabled()
    gc.disable()
    try:
        found = importlib.import_module(module)
        if "jax" in sys.modules:
            from fedvi.run import compiled

            compiled.keep_programs(lambda text: click.echo(f"warning: {text}", err=True))
    finally:
        gc.freeze()
        if was_collecting:
            gc.enable()
    return found


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(fedvi.__version__, prog_name="fedvi")
@click.option(
    "--allow-code",
    multiple=True,
    metavar="NAME",
    help="Run the installed plug-in of this name: a command, or a part that a study or result names.",
)
def main(allow_code: tuple[str, ...]) -> None:
    """Fit one Bayesian model on data that may not leave its owners.

    A study file (TOML) says everything that all sites must agree on: the model, the prior, who works
    when, and the privacy that is promised. `fedvi COMMAND --help` explains a command. Start with an
    example:

    \b
      fedvi check examples/heart-disease/study.toml
      fedvi simulate examples/heart-disease/study.toml

    So that later starts are faster, fedvi keeps compiled programs in ~/.cache/fedvi/jax, at most 512 MiB.
    Set the environment variable FEDVI_COMPILATION_CACHE to another folder, or to "off".

    Exit codes: 0 done; 1 a fault was found, a question was not confirmed, or something else failed; 2 the
    study, the data or the command line is wrong; 3 no connection; 4 not authorised; 5 the privacy budget
    does not allow it, or a ledger or state is damaged; 6 the run failed or was stopped; 130 stopped by
    Ctrl-C (a server or a client ends with 0).
    """
