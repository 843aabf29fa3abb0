"""The command line. A command imports its modules when it is called, so all commands start fast."""

from __future__ import annotations

import io
import sys
from typing import Any

import click
from click.exceptions import NoArgsIsHelpError

from trialfleet.errors import TrialfleetError
from trialfleet.files import close_to_others
from trialfleet.workflows.cli import (
    model_commands,
    result_commands,
    run_commands,
    study_commands,
)
from trialfleet.workflows.cli.completion_command import completion
from trialfleet.workflows.cli.daily_commands import daily
from trialfleet.workflows.cli.export_command import export
from trialfleet.workflows.cli.fleet_commands import fleet, manager
from trialfleet.workflows.cli.notify_commands import notify
from trialfleet.workflows.cli.pool_commands import pool
from trialfleet.workflows.views.output import say


def _error_text(error: click.UsageError) -> str:
    message = error.format_message()
    where = f"; see: {error.ctx.command_path} --help" if error.ctx else ""
    return f"{message[:1].lower()}{message[1:].removesuffix('.')}{where}"


class _Context(click.Context):
    """A click context that attaches itself to usage errors without a context.

    The text of these errors then names the command.
    """

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool | None:
        if isinstance(error, click.UsageError):
            error.ctx = error.ctx or self
        return super().__exit__(kind, error, trace)


def _use_context(command: click.Command) -> None:
    command.context_class = _Context
    if isinstance(command, click.Group):
        for each in command.commands.values():
            _use_context(each)


class _Group(click.Group):
    """A group of commands that prints an error in one line, without a traceback, and exits."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except TrialfleetError as error:
            say(f"error: {error}", err=True)
            sys.exit(error.exit_code)
        except NoArgsIsHelpError:
            raise
        except click.UsageError as error:
            say(f"error: {_error_text(error)}", err=True)
            sys.exit(error.exit_code)
        except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
            sys.stderr.close()
            sys.exit(1)
        except OSError as error:  # such as a full disk or a missing permission
            say(f"error: {error}", err=True)
            sys.exit(TrialfleetError.exit_code)


# click keeps the line breaks of a paragraph that begins with a backspace
_FIRST_STEPS = """\b
First steps:
  trialfleet init first              write an example study
  trialfleet pool up                 start HTCondor on this machine
  trialfleet run first/study.yaml    plan, submit and watch a run
"""


@click.group(
    cls=_Group,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=_FIRST_STEPS,
)
@click.version_option(package_name="trialfleet")
def main() -> None:
    """Tune and train one model per region on machines that HTCondor manages."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # a path may have bytes beyond UTF-8
    close_to_others()


for command in (
    study_commands.init,
    study_commands.plan,
    study_commands.schema,
    study_commands.run,
    run_commands.runs,
    run_commands.submit,
    run_commands.status,
    run_commands.why,
    run_commands.logs,
    run_commands.stop,
    run_commands.resume,
    run_commands.remove,
    run_commands.supervise,
    result_commands.best,
    result_commands.trials,
    result_commands.cost,
    result_commands.report,
    result_commands.dashboard,
    result_commands.predict,
    model_commands.models,
    model_commands.rollback,
    model_commands.promote,
    run_commands.takeover,
    daily,
    export,
    notify,
    result_commands.serve,
    pool,
    fleet,
    manager,
    completion,
):
    main.add_command(command)
    _use_context(command)
