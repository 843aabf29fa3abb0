"""The lab from outside: start one, act on it, and run commands on its machines."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from trialfleet.infra.pool.htcondor_installation import find_htcondor

from . import debian_image, namespaces
from .moto_side import EVERYTHING, IMAGES

REPOSITORY = Path(__file__).resolve().parents[3]
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# By the stand-in for systemd, or the real one.
BOOT_IS_OVER = """
if test -e /var/lib/cloud/instance/boot-finished; then exit 0; fi
test -e /run/systemd/stand-in && case $(systemctl is-active cloud-init) in
    inactive | failed) true ;;
    *) false ;;
esac
"""
BOOTING = 60.0  # seconds, at most


class LabError(Exception):
    """The lab can't be started, or can't do what a caller asked for."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """A lab's settings.

    Attributes:
        regions: AWS regions that have images; the first has the manager.
        policy: what the caller, `trialfleet fleet` on the manager, may do in AWS.
        manager_image: `bare`, or `prepared` with HTCondor installed.
        hardware: of the nodes, as `stand_in_nvidia` has it; GPUs follow from the instance type.
        environment: variables of the nodes' processes.
        files: more files on the nodes' disks before the first boot.
        remote: the manager has the command `lab`, which causes failures, see `remote`.
        real: all machines except the manager boot Debian with systemd and cloud-init, see
            `real_machine`.
        users: nodes with torch are users' machines: they have trialfleet, as the manager has.
    """

    regions: tuple[str, ...] = ("us-east-1", "us-west-2")
    policy: Mapping[str, Any] = field(default_factory=lambda: EVERYTHING)
    manager_image: str = "bare"
    hardware: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    remote: bool = False
    real: bool = False
    users: bool = False


@dataclass(frozen=True)
class Machine:
    """One machine of the lab."""

    lab: Lab
    id: str

    def run(
        self,
        command: list[str] | str,
        *,
        user: str = "root",
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        stdin: str = "",
        check: bool = False,
        timeout: float = 120,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the machine; a text is run by its shell.

        Args:
            command: words, or a line for `sh -c`.
            user: the account that runs it.
            env: variables besides those that a login sets.
            cwd: working directory; default: the user's home.
            stdin: its standard input.
            check: raise LabError with the output if the command fails.
            timeout: seconds, after which the command is killed.

        Raises:
            LabError: the command failed, and `check` is set.
        """
        words = ["sh", "-c", command] if isinstance(command, str) else command
        done = subprocess.run(
            [*self.entering(user, env, cwd), "timeout", "--kill-after=5", f"{timeout:g}", *words],
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
        )
        if check and done.returncode != 0:
            raise LabError(
                f"on {self.id}: {shlex.join(words)}: exit {done.returncode}\n"
                f"{done.stdout[-4000:]}{done.stderr[-4000:]}"
            )
        return done

    def entering(
        self, user: str = "root", env: Mapping[str, str] | None = None, cwd: str = ""
    ) -> list[str]:
        """Return the words before a command line that make it run on the machine."""
        outer = namespaces.entering(self.lab.pid, user=os.geteuid() != 0)
        inner = namespaces.entering(self.lab.ask("pid", self.id))
        home = "/root" if user == "root" else f"/home/{user}"
        variables = {"PATH": SYSTEM_PATH, "LANG": "C.UTF-8", **(env or {})}
        return [
            *outer,
            *inner,
            *("setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "--reset-env"),
            *("env", f"--chdir={cwd or home}", *(f"{k}={v}" for k, v in variables.items())),
        ]

    def read(self, path: str) -> str:
        """Return a file's text; empty if the file is missing."""
        return self.run(["cat", path]).stdout

    def write(self, path: str, text: str, *, user: str = "root") -> None:
        """Write a file that belongs to `user`, and create its folders."""
        line = 'mkdir -p "$(dirname "$1")" && cat > "$1"'
        self.run(["sh", "-c", line, "sh", path], user=user, stdin=text, check=True)

    def log(self) -> str:
        """Return what the console has printed since the machine was booted."""
        return str(self.lab.ask("console", self.id))

    def instance(self) -> dict[str, Any]:
        """Return the machine's instance, as `Lab.instances` lists it."""
        return next(found for found in self.lab.instances() if found["id"] == self.id)

    def wait_for_boot(self) -> None:
        """Return once the machine's user data has run.

        Raises:
            LabError: it hasn't in time; with the console's output.
        """
        try:
            self.lab.wait_for(
                lambda: self.run(BOOT_IS_OVER).returncode == 0, f"the boot of {self.id}", BOOTING
            )
        except LabError as error:
            raise LabError(f"{error}; its console:\n{self.log()}") from error

    def kill(self) -> None:
        """Kill the machine without notice, as if its power failed; even AWS isn't notified."""
        self.lab.ask("kill", self.id)

    def power_off(self) -> None:
        """Press the power button: services are stopped, and AWS sees that it shut down."""
        self.lab.ask("power_off", self.id)

    def partition(self, seconds: float) -> None:
        """Drop every packet from and to the machine for some seconds."""
        self.lab.ask("partition", self.id, seconds)

    def part_from(self, other: Machine, seconds: float) -> None:
        """Drop every packet between two machines; the manager and AWS still reach both."""
        self.lab.ask("part", self.id, other.id, seconds)


class Lab:
    """A cloud on this machine: AWS by moto, and a machine of namespaces for each instance."""

    def __init__(self, folder: Path, options: Options) -> None:
        self.folder, self.options = folder.resolve(), options
        self.pid = 0
        self.cgroup = f"trialfleet-lab-{os.getpid()}-{id(self)}" if self.options.real else ""
        self._cgroups: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    @classmethod
    def start(cls, folder: Path, **options: Any) -> Self:
        """Return a new lab, for use in a `with` statement.

        Args:
            folder: an empty folder, or one that doesn't exist; it is removed at the end.
            options: as `Options` has them.
        """
        return cls(folder, Options(**options))

    def __enter__(self) -> Self:
        reason = namespaces.why_none() or (self.options.real and debian_image.why_none())
        if reason:
            raise LabError(reason)
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = self._settings()
        if self.cgroup:
            self._make_cgroup()
        with (self.folder / "cloud.log").open("w") as log:
            self._process = subprocess.Popen(
                [
                    *namespaces.new_as_this_user(),
                    *(sys.executable, "-m", "tests.fleet.lab.cloud"),
                    *(str(self.folder), json.dumps(settings)),
                ],
                cwd=REPOSITORY,
                env={**os.environ, "PATH": f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # Ctrl-C is for programs on a machine
            )
        try:
            self.pid = namespaces.first_process(self._process.pid)
            self._answer()
            self.manager = Machine(self, self.ask("manager"))
            self.manager.wait_for_boot()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End everything in the lab at once."""
        if self._process is not None:
            self._process.kill()  # `unshare` takes its namespaces down with it
            self._process.communicate()
        if self._cgroups is not None:
            self._cgroups.communicate()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def aws_environment(self) -> dict[str, str]:
        """Variables by which commands on the manager find AWS and its keys."""
        return dict(self.ask("environment"))

    def launch(
        self,
        user_data: str = "",
        *,
        image: str = "bare",
        kind: str = "g5.xlarge",
        spot: bool = False,
        profile: str = "",
    ) -> Machine:
        """Launch an instance that isn't trialfleet's, and return its machine after the first boot.

        Args:
            user_data: a script.
            image: `bare`, `prepared` with HTCondor, or `learning` with HTCondor and torch.
            kind: the instance type.
            spot: on the spot market.
            profile: name of an instance profile.
        """
        more: dict[str, Any] = {"IamInstanceProfile": {"Name": profile}} if profile else {}
        if spot:
            more["InstanceMarketOptions"] = {"MarketType": "spot"}
        made = self.aws(
            "ec2",
            "run_instances",
            ImageId=IMAGES[image],
            InstanceType=kind,
            MinCount=1,
            MaxCount=1,
            UserData=user_data,
            InstanceInitiatedShutdownBehavior="terminate",
            MetadataOptions={"HttpTokens": "required", "InstanceMetadataTags": "enabled"},
            **more,
        )
        machine = Machine(self, made["Instances"][0]["InstanceId"])
        machine.wait_for_boot()
        return machine

    def instances(self, *states: str) -> list[dict[str, Any]]:
        """Return the instances except the manager; only those in `states`, if any are named."""
        found = self.ask("instances")
        return [instance for instance in found if not states or instance["state"] in states]

    def machine(self, instance_id: str) -> Machine:
        """Return the machine of an instance."""
        return Machine(self, instance_id)

    def aws(self, service: str, operation: str, region: str = "", **words: Any) -> Any:
        """Call AWS with all permissions, by boto3's names such as `describe_instances`."""
        return self.ask("aws", service, operation, region or self.options.regions[0], **words)

    def allow(self, policy: Mapping[str, Any]) -> None:
        """Replace the IAM policy of the caller on the manager."""
        self.ask("allow", policy)

    def configure(self, **options: Any) -> None:
        """Change `hardware`, `environment` or `files` of the nodes that boot from now on."""
        self.ask("configure", **options)

    def interrupt(self, instance_id: str, seconds: float = 120) -> None:
        """Send a spot instance the notice of its end, and terminate it `seconds` later."""
        self.ask("interrupt", instance_id, seconds)

    def rebalance(self, instance_id: str) -> None:
        """Send a spot instance AWS's recommendation to replace it."""
        self.ask("rebalance", instance_id)

    def ask(self, do: str, *words: Any, **named: Any) -> Any:
        """Send a request to the lab's cloud process, and return the answer.

        Raises:
            LabError: the request failed, or the lab has ended.
        """
        assert self._process is not None
        assert self._process.stdin is not None
        with self._lock:
            request = {"do": do, "words": words, "named": named}
            try:
                print(json.dumps(request), file=self._process.stdin, flush=True)
            except BrokenPipeError:
                raise LabError(f"the lab has ended:\n{self._log()}") from None
            return self._answer()

    def wait_for(self, holds: Callable[[], object], what: str, seconds: float = 60) -> Any:
        """Return the result of `holds` once it is true; a busy machine gets more time.

        Raises:
            LabError: it is not true in time.
        """
        deadline = time.monotonic() + 3 * seconds
        while not (found := holds()):
            if time.monotonic() > deadline:
                raise LabError(f"{what}: not so within {3 * seconds:g} s")
            time.sleep(0.2)
        return found

    def _make_cgroup(self) -> None:
        """Make the cgroup of the lab's machines, which is removed when this process ends."""
        words = ["unshare", "--mount", sys.executable, "-m", "tests.fleet.lab.cgroups"]
        self._cgroups = subprocess.Popen(
            [*words, self.cgroup],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._cgroups.stdout is not None
        if not self._cgroups.stdout.readline():
            raise LabError("no cgroup can be made for systemd, see above")

    def _answer(self) -> Any:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise LabError(f"the lab has ended:\n{self._log()}")
        answer = json.loads(line)
        if "error" in answer:
            raise LabError(answer["error"])
        return answer["result"]

    def _log(self) -> str:
        return (self.folder / "cloud.log").read_text()[-4000:]

    def _settings(self) -> dict[str, Any]:
        """Return the options, and which folders of this machine the lab's machines see."""
        condor = find_htcondor()
        shown = [Path(sys.base_prefix)]
        if condor.unpacked:
            shown.append(condor.release.parent)
        image = str(debian_image.image(condor.version)) if self.options.real else ""
        return dataclasses.asdict(self.options) | {
            "image": image,
            "cgroup": self.cgroup,
            "condor": str(condor.release),
            "shown": outside_usr(shown),
            "repository": outside_usr([REPOSITORY]),
            "venv": outside_usr([Path(sys.prefix), *shared_packages()]),
        }


def shared_packages() -> list[Path]:
    """Return the package folders that this Python's environment uses from another one."""
    folders = [Path(place) for place in sys.path if Path(place).name == "site-packages"]
    return [folder for folder in folders if not folder.is_relative_to(sys.prefix)]


def outside_usr(places: list[Path]) -> list[str]:
    """Return those of `places` that are not below /usr, which machines have anyway."""
    return [str(place) for place in places if not place.is_relative_to("/usr")]
