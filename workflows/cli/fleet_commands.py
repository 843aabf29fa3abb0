"""The commands `trialfleet fleet …` and `trialfleet manager …`."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from trialfleet.errors import FleetError, InputError
from trialfleet.workflows.cli.arguments import Integer, confirm
from trialfleet.workflows.views.output import console, json_option, print_json, say, show

if TYPE_CHECKING:
    from trialfleet.infra.fleet.aws.clients import Aws
    from trialfleet.infra.fleet.commands.status import FleetStatus
    from trialfleet.infra.fleet.instances.inventory import Listing
    from trialfleet.infra.fleet.spec.fleet import Fleet
    from trialfleet.infra.fleet.spec.machines import Instance

FILES = ("study.yaml", "fleet.yaml")
Command = TypeVar("Command", bound=Callable[..., Any])
ALL_POLICIES = "all"
POLL = 2.0  # seconds between two queries while a fleet starts

file_argument = click.argument("file", type=click.Path(path_type=Path), required=False)


@click.group()
def fleet() -> None:
    """Create, watch, scale and remove GPU nodes on EC2.

    FILE is a study with a `fleet:` table, or a file with only a fleet. The default is study.yaml or
    fleet.yaml in this folder.
    """


@fleet.command("plan")
@file_argument
@click.option(
    "--policy",
    is_flag=False,
    flag_value=ALL_POLICIES,
    metavar="[NAME]",
    help="Print only the IAM policies as JSON, or one of them: caller, daily, node, reap.",
)
@click.option(
    "--account", help="With --policy: the AWS account's number, so that no credentials are needed."
)
@click.option("--refresh-prices", is_flag=True, help="First get on-demand prices from AWS.")
@json_option
def fleet_plan(
    file: Path | None, policy: str | None, account: str | None, refresh_prices: bool, as_json: bool
) -> None:
    """Show what `fleet up` would create, and what that would cost. Nothing is created.

    Spot prices, quotas and images come from AWS, so the command needs credentials.
    """
    from trialfleet.infra.fleet.commands.plan import fleet_plan as planned
    from trialfleet.infra.fleet.commands.plan import refresh_prices as refresh
    from trialfleet.workflows.cli.printing.fleet_tables import plan_view
    from trialfleet.workflows.study.loading import load_gang_needs

    if account and not policy:
        raise InputError(
            "--account requires --policy; without --policy, your AWS credentials name the account"
        )
    if account and not re.fullmatch(r"[0-9]{12}", account):
        raise InputError(f"--account {account!r}: write the 12-digit number of an AWS account")
    if policy:
        _print_policies(policy, file, account)
        return
    aws, spec = _open_fleet(file)
    if refresh_prices:
        say(f"on-demand prices are in {refresh(aws, spec)}", err=as_json)
    result = planned(aws, spec, load_gang_needs(file or _file_here()))
    if as_json:
        print_json(asdict(result))
    else:
        show(plan_view(result))
        if not result.problems:
            say(f"next: trialfleet fleet up{_file_argument(file)}")
    if result.problems:
        sys.exit(1)


@fleet.command("gpus")
@file_argument
@click.option(
    "--aws-region",
    "aws_regions",
    multiple=True,
    help="AWS region to search (default: the fleet's); with this option and without FILE, all types"
    " with GPUs are listed.",
)
@json_option
def fleet_gpus(file: Path | None, aws_regions: tuple[str, ...], as_json: bool) -> None:
    """List instance types with GPUs: hardware, prices, and AWS regions that offer them.

    With FILE, list only the types that the fleet's `instance_types` or `needs` allows. Without
    credentials, the data comes from trialfleet's own price table.
    """
    from trialfleet.infra.fleet.aws.clients import Aws
    from trialfleet.infra.fleet.commands.gpu_types import gpu_types
    from trialfleet.infra.fleet.spec.fleet import check_regions
    from trialfleet.workflows.cli.printing.fleet_tables import gpus_view
    from trialfleet.workflows.study.loading import load_fleet

    regions = check_regions(aws_regions)
    spec = load_fleet(file or _file_here()) if file or not regions else None
    found = gpu_types(Aws(), regions or (spec.aws_regions if spec else []), spec)
    if as_json:
        print_json(asdict(found))
    else:
        show(gpus_view(found))


@fleet.command("up")
@file_argument
@click.option("--nodes", type=Integer(0), help="Number of nodes (default: nodes.min, at least 1).")
@click.option("--run", help="Run to which the nodes' cost is charged.")
@click.option(
    "--wait",
    is_flag=True,
    help="Wait until each node accepts trials, is sick or late, or has ended. Exit with 1 if one"
    " accepts none.",
)
def fleet_up(file: Path | None, nodes: int | None, run: str | None, wait: bool) -> None:
    """Create or update the fleet and start its nodes. You can repeat this command."""
    from trialfleet.infra.fleet.commands.scale import bring_up
    from trialfleet.workflows.cli.printing.fleet_tables import status_view

    aws, spec = _open_fleet(file)
    launched = bring_up(aws, spec, nodes, run or "", say)
    say(f"{len(launched.instances)} node(s)")
    if spec.autoscale == "off" and launched.instances:
        say(
            f"the nodes terminate after {spec.lease_minutes:g} minutes unless `trialfleet fleet "
            "autoscale` runs, or `trialfleet fleet up` is repeated"
        )
    if wait:
        ids = {instance.id for instance in launched.instances}
        settled = _watch_fleet(aws, spec, run or "", lambda status: status.has_settled(ids))
        show(status_view(settled))
        if unfit := settled.unfit_nodes(ids):
            whys = "; ".join(f"{one.instance.id} is {one.stage}: {one.reason}" for one in unfit)
            raise FleetError(f"{len(unfit)} of {len(ids)} node(s) accept no trials: {whys}")
    say(f"next: trialfleet fleet status{_file_argument(file)}")


@fleet.command("status")
@file_argument
@click.option("--run", help="Show only this run's trials, and the cost since its start.")
@click.option("--watch", is_flag=True, help="Watch until Ctrl-C.")
@json_option
def fleet_status(file: Path | None, run: str | None, watch: bool, as_json: bool) -> None:
    """Show each node's stage, price, age, cost, trials, GPU, and the GPU's measured bandwidth."""
    from trialfleet.infra.fleet.commands.status import status
    from trialfleet.workflows.cli.printing.fleet_tables import status_view

    aws, spec = _open_fleet(file)
    if as_json:
        print_json(status(aws, spec, run=run or "").to_json())
    elif watch:
        _watch_fleet(aws, spec, run or "", lambda _: False)
    else:
        show(status_view(status(aws, spec, run=run or "")))


@fleet.command("ssh")
@click.argument("node")
@file_argument
def fleet_ssh(node: str, file: Path | None) -> None:
    """Open a shell on NODE with AWS Session Manager, without an open port or an SSH key.

    NODE is an instance id, a prefix of one, or the machine's name in the pool. The fleet needs
    `ssm: true`, and this machine needs AWS's programs aws and session-manager-plugin.
    """
    from trialfleet.infra.fleet.commands.shell import session

    command = session(*_open_fleet(file), node)
    os.execvp(command[0], command)  # noqa: S606 - AWS's own program


@fleet.command("scale")
@click.argument("nodes", type=Integer(0))
@file_argument
def fleet_scale(nodes: int, file: Path | None) -> None:
    """Scale the fleet to NODES nodes.

    Surplus nodes are drained and then terminated, idle nodes before busy ones. A running autoscaler
    may change the number again. The exit code is 1 if AWS gives too few nodes, or if a node can't
    be drained.
    """
    from trialfleet.infra.fleet.commands.scale import scale

    aws, spec = _open_fleet(file)
    problems = scale(aws, spec, nodes, say)
    for line in problems:
        say(line, err=True)
    if problems:
        sys.exit(1)
    say(f"next: trialfleet fleet status{_file_argument(file)}")


@fleet.command("autoscale")
@file_argument
@click.option("--run", help="Run to which the nodes' cost is charged.")
def fleet_autoscale(file: Path | None, run: str | None) -> None:
    """Adjust the number of nodes to what the job queue needs, until Ctrl-C.

    The command also renews the nodes' leases. A lease is a time limit, after which a node
    terminates itself.
    """
    from trialfleet.infra.fleet.scaling.down_note import lift
    from trialfleet.workflows.control.scripts.autoscale_program import loop

    aws, spec = _open_fleet(file)
    lift(spec.full_name)
    loop(aws, spec, run=run or "", progress=say).run()


@fleet.command("bake")
@file_argument
@click.option(
    "--format",
    "form",
    type=click.Choice(["script", "image-builder"]),
    default="script",
    help="A shell script for root, or JSON for EC2 Image Builder.",
)
@click.option(
    "--architecture",
    type=click.Choice(["x86_64", "arm64"]),
    help="Architecture of the image for image-builder (default: that of the fleet's `needs`).",
)
def fleet_bake(file: Path | None, form: str, architecture: str | None) -> None:
    """Print a recipe for a machine image (AMI). Nodes with this image join the pool in seconds."""
    from trialfleet.infra.fleet.commands import bake
    from trialfleet.infra.fleet.lifecycle.up import gather_inputs

    if architecture and form == "script":
        raise InputError(
            "--architecture requires --format image-builder; the script of --format script makes "
            "an image for the architecture of the machine on which the script runs"
        )
    aws, spec = _open_fleet(file)
    inputs = gather_inputs(aws, spec)
    if form == "script":
        click.echo(bake.script(aws, spec, inputs), nl=False)
    else:
        built = architecture or spec.needs.architecture
        print_json(bake.image_builder(aws, spec, inputs, built))


@fleet.command("down")
@file_argument
@click.option("--now", is_flag=True, help="Don't wait for running trials' checkpoints.")
@click.option("--yes", is_flag=True, help="Don't ask, even if runs use the fleet.")
def fleet_down(file: Path | None, now: bool, yes: bool) -> None:
    """Drain and terminate the nodes, and delete everything that `up` created.

    If runs use the fleet, the command lists them and asks for confirmation. It doesn't stop these
    runs, but their trials wait. From then on, autoscalers on this machine start no nodes of the
    fleet. They start nodes again after `fleet up`, `fleet scale` or `fleet autoscale`, or after you
    submit or resume a run that uses the fleet.
    """
    from trialfleet.infra.fleet.lifecycle.down import down
    from trialfleet.infra.fleet.scaling.cost_record import keep_record
    from trialfleet.infra.fleet.scaling.down_note import note_down
    from trialfleet.infra.fleet.scaling.draining import drain_instances
    from trialfleet.workflows.formatting import usd

    def drain(instances: list[Instance]) -> None:
        for line in [] if now else drain_instances(instances, "the fleet goes down", say):
            say(line, err=True)

    aws, spec = _open_fleet(file)
    _confirm_with_runs(spec.full_name, yes)
    note_down(spec.full_name)
    costs: list[float] = []
    began = datetime.now(UTC) - timedelta(seconds=5)  # AWS's clock may differ

    def keep(listing: Listing) -> None:
        costs.append(keep_record(aws, spec, listing, began))

    left = down(aws, spec, drain, say, keep=keep)
    for line in left:
        say(line, err=True)
    if left:
        say(f"to try again: trialfleet fleet down{_file_argument(file)}", err=True)
        sys.exit(1)
    say(f"everything is deleted; the fleet has cost about {usd(costs[-1])} USD")


def _confirm_with_runs(name: str, yes: bool) -> None:
    from trialfleet.errors import PoolError
    from trialfleet.files import shell_quoted
    from trialfleet.workflows.facts.dagman.job_queue import find_fleet_runs

    try:
        runs = [shell_quoted(run) for run in find_fleet_runs(name)]
    except PoolError as error:
        say(f"can't check whether runs use the fleet: {error}", err=True)
        return
    if not runs:
        return
    say(f"in progress on the fleet {name}: {', '.join(runs)}")
    say("their trials save checkpoints and wait until `trialfleet fleet up`")
    if not yes:
        confirm(
            "take the fleet down?",
            "a run is in progress, so the fleet was not taken down; stop the run with `trialfleet "
            f"stop {runs[0]}`, or take the fleet down anyway with `trialfleet fleet down --yes`",
        )


@fleet.command("reap")
@click.option(
    "--aws-region", "aws_regions", multiple=True, required=True, help="AWS region to search."
)
@click.option("--dry-run", is_flag=True, help="Only list the nodes.")
def fleet_reap(aws_regions: tuple[str, ...], dry_run: bool) -> None:
    """Terminate the nodes whose lease (time limit) has ended, in all fleets of this AWS account."""
    from trialfleet.infra.fleet.aws.clients import Aws
    from trialfleet.infra.fleet.lifecycle.reap import list_expired, reap
    from trialfleet.infra.fleet.spec.fleet import check_regions

    regions = check_regions(aws_regions)
    if dry_run:
        expired = list_expired(Aws(), regions)
        for one in expired.instances:
            say(f"{one.id}  {one.aws_region}  {one.type}  its lease ended {one.expires}")
    else:
        expired = reap(Aws(), regions, say)
        say(f"{len(expired.instances)} terminated")
    for refusal in expired.silent.values():
        say(str(refusal), err=True)
    if expired.silent:
        sys.exit(1)


@fleet.command("doctor")
@file_argument
@json_option
def fleet_doctor(file: Path | None, as_json: bool) -> None:
    """Check credentials, permissions, quotas, ports, clock and versions, and give advice."""
    from trialfleet.infra.fleet.commands.doctor import examine
    from trialfleet.workflows.cli.printing.fleet_tables import doctor_view

    findings = examine(*_open_fleet(file))
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        show(doctor_view(findings))
    if any(finding.ok is False for finding in findings):
        sys.exit(1)


# -- the manager ----------------------------------------------------------------------------------


@click.group()
def manager() -> None:
    """Set up this machine as central manager and access point of a fleet's pool."""


def _manager_options(command: Command) -> Command:
    for option in (
        click.option(
            "--port",
            type=Integer(1, 65_535),
            default=9618,
            show_default=True,
            help="TCP port of all daemons.",
        ),
        click.option(
            "--address",
            help="Address at which nodes reach this machine (default: its IP address).",
        ),
        click.option("--user", help="Account that runs studies (default: the caller of sudo)."),
    ):
        command = option(command)
    return command


@manager.command("install")
@_manager_options
@click.option("--dry-run", is_flag=True, help="Only show the steps.")
def manager_install(user: str | None, address: str | None, port: int, dry_run: bool) -> None:
    """Make this Debian or Ubuntu machine the manager of a pool. You can repeat this command."""
    from trialfleet.infra.manager.install import build_settings, install

    install(build_settings(user, address, port), dry_run=dry_run, progress=say)
    if not dry_run:
        say("next: trialfleet fleet plan")


@manager.command("config")
@_manager_options
def manager_config(user: str | None, address: str | None, port: int) -> None:
    """Print the HTCondor configuration of a manager."""
    from trialfleet.infra.manager.config import render
    from trialfleet.infra.manager.install import build_settings

    click.echo(render(build_settings(user, address, port)), nl=False)


@manager.command("token")
def manager_token() -> None:
    """Make a new token with which nodes join the pool. `fleet up` gives it to new nodes."""
    from trialfleet.infra.manager.tokens import TOKEN_FILE, renew

    say(f"{TOKEN_FILE} is valid until {renew():%Y-%m-%d %H:%M} UTC")


# -- what the commands share ----------------------------------------------------------------------


def _print_policies(wanted: str, file: Path | None, account: str | None) -> None:
    """Print the IAM policy `wanted` of a fleet, or all of its policies if `wanted` is "all".

    If `file` is None, `wanted` may be a fleet's file. Then all policies of that fleet are printed.
    By default, `account` is the account of the user's credentials.
    """
    from trialfleet.infra.fleet.commands.plan import POLICIES, policies
    from trialfleet.spelling import did_you_mean

    known = [ALL_POLICIES, *POLICIES]
    if wanted not in known:
        if file or not Path(wanted).exists():
            guess = did_you_mean(wanted, known)
            raise InputError(
                f"--policy {wanted!r}: write one of {', '.join(known)}, or a fleet's file{guess}"
            )
        file, wanted = Path(wanted), ALL_POLICIES
    aws, spec = _open_fleet(file)
    found = policies(spec, account or _own_account(aws, spec))
    print_json(found if wanted == ALL_POLICIES else found[wanted])


def _own_account(aws: Aws, spec: Fleet) -> str:
    try:
        return aws.account(spec.home)
    except FleetError as error:
        hint = "or give the account's number: --policy --account 123456789012"
        raise FleetError(f"{error}; {hint}") from error


def _open_fleet(file: Path | None) -> tuple[Aws, Fleet]:
    from trialfleet.infra.fleet.aws.clients import Aws
    from trialfleet.workflows.study.loading import load_fleet

    return Aws(), load_fleet(file or _file_here())


def _file_here() -> Path:
    for name in FILES:
        if Path(name).is_file():
            return Path(name)
    raise InputError(
        f"{str(Path.cwd())!r} has neither {' nor '.join(FILES)}; name the file, or change to its "
        "folder"
    )


def _file_argument(file: Path | None) -> str:
    from trialfleet.files import shell_quoted

    return f" {shell_quoted(file)}" if file else ""


def _watch_fleet(
    aws: Aws, spec: Fleet, run: str, done: Callable[[FleetStatus], bool]
) -> FleetStatus:
    from rich.live import Live

    from trialfleet.infra.fleet.commands.status import status
    from trialfleet.workflows.cli.printing.fleet_tables import status_line, status_view

    terminal = console()
    last_line = ""
    with Live(console=terminal, refresh_per_second=4, transient=True) as live:
        while True:
            current = status(aws, spec, run=run)
            if terminal.is_terminal:
                live.update(status_view(current))
            elif last_line != (last_line := status_line(current)):
                say(last_line)
            if done(current):
                return current
            time.sleep(POLL)
