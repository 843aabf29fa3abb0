"""Boots a machine for each instance that AWS has, and powers it off when AWS ends the instance."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
import traceback
import tty
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import moto_side, switch
from .machine import Spec
from .namespaces import NEW, first_process

FIRMWARE = "tests.fleet.lab.machine"
REAL_FIRMWARE = "tests.fleet.lab.real_machine"
POLL = 0.1  # seconds between two looks at AWS's instances
POWEROFF_TARGET = signal.SIGRTMIN + 4  # systemd's signal for a pressed power button
PATIENCE = 45.0  # seconds from the power button to the plug: services have 30 of them
Describe = Callable[[Any, dict[str, Any]], dict[str, Any]]


class Machine:
    """A machine that runs, or ran, for an EC2 instance."""

    def __init__(self, spec: Spec, region: str, folder: Path) -> None:
        """Boot the machine; its console's output goes to a file in `folder`."""
        self.spec, self.region, self.lost = spec, region, False
        self.going = threading.Event()
        self._folder, self._boots = folder, 0
        self._console = folder / f"{spec.id}.console"
        self._console.touch()
        self.boot()

    def boot(self) -> None:
        """Switch the machine on, for the first time or again."""
        self.going.clear()
        self._boots += 1
        if self._boots > 1:
            switch.unplug(self.spec.address)
        fields = dataclasses.asdict(self.spec)
        if self.spec.cgroup:
            fields["cgroup"] += f".{self._boots}"  # the kernel may yet be clearing the last one
        file = self._folder / f"{self.spec.id}.json"
        file.write_text(json.dumps(fields))
        firmware = REAL_FIRMWARE if self.spec.image else FIRMWARE
        clocks = clocks_from_zero() if self.spec.image else ()
        master, slave = pty.openpty()
        tty.setraw(slave)
        self.process = subprocess.Popen(
            [*NEW, *clocks, sys.executable, "-S", "-m", firmware, str(file)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self._copier = threading.Thread(target=self._copy_console, args=(master,), daemon=True)
        self._copier.start()
        self.pid = first_process(self.process.pid)
        switch.connect(self.spec.address, self.pid)

    @property
    def alive(self) -> bool:
        """True until the machine's first process has ended."""
        return self.process.poll() is None

    @property
    def starts_again(self) -> bool:
        """True if the machine is off only to boot again: AWS restarts it, or it reboots itself.

        The kernel reports whether a real system reboots.
        """
        return not self.alive and (self.going.is_set() or self.process.poll() == -signal.SIGHUP)

    def console_output(self) -> bytes:
        """Return what the console has printed; of a machine that is off, all of it."""
        if not self.alive:
            self._copier.join(PATIENCE)
        return self._console.read_bytes()

    def power_off(self) -> None:
        """Press the power button; if the machine is still on much later, end it at once."""
        if self.going.is_set():
            return
        self.going.set()
        threading.Thread(target=self._power_off, daemon=True).start()

    def pull_the_plug(self) -> None:
        """End the machine at once; its network is cut first, so that it sends nothing."""
        self.lost = True
        switch.cut(self.spec.address)
        self._kill(signal.SIGKILL)

    def _power_off(self) -> None:
        self._kill(POWEROFF_TARGET if self.spec.image else signal.SIGTERM)
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._kill(signal.SIGKILL)

    def _kill(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def _copy_console(self, master: int) -> None:
        with self._console.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while text := os.read(master, 65_536):  # OSError once the other end is closed
                file.write(text)
        os.close(master)


def clocks_from_zero() -> tuple[str, ...]:
    """Return the options of `unshare` by which a machine's uptime begins at its boot."""
    uptime = int(time.clock_gettime(time.CLOCK_BOOTTIME))
    return ("--time", f"--boottime=-{uptime}", f"--monotonic=-{int(time.monotonic())}")


class Hypervisor:
    """All machines of the lab."""

    def __init__(self, folder: Path, hosts: Path, describe: Describe) -> None:
        """Keep machines' files in `folder`; `describe` returns a machine for an instance."""
        self.machines: dict[str, Machine] = {}
        self._folder, self._hosts, self._describe = folder, hosts, describe

    def start(self) -> None:
        """Start a thread that follows the instances in AWS."""
        threading.Thread(target=self._watch, daemon=True).start()

    def find(self, instance_id: str, seconds: float = 30) -> Machine:
        """Return an instance's machine as soon as it is booted.

        Raises:
            TimeoutError: the machine isn't booted after `seconds`.
        """
        deadline = time.monotonic() + seconds
        while instance_id not in self.machines:
            if time.monotonic() > deadline:
                raise TimeoutError(f"no machine was booted for {instance_id}")
            time.sleep(POLL / 2)
        return self.machines[instance_id]

    def _watch(self) -> None:
        while True:
            for instance in list(moto_side.instances()):
                try:
                    self._attend(instance)
                except Exception:  # noqa: BLE001  one machine's failure must not stop the others
                    traceback.print_exc()
            time.sleep(POLL)

    def _attend(self, instance: Any) -> None:
        machine = self.machines.get(instance.id)
        if machine is None and instance.state == "running":
            self.machines[instance.id] = self._boot(instance)
        elif machine is not None and instance.state != "running" and machine.alive:
            machine.power_off()
        elif machine is not None and instance.state == "running" and machine.starts_again:
            machine.boot()
        elif machine is not None and instance.state == "running" and not machine.alive:
            self._note_end(instance, machine)

    def _boot(self, instance: Any) -> Machine:
        self._name(instance.private_ip, instance.private_dns_name)
        spec: dict[str, Any] = {
            "id": instance.id,
            "disk": str(self._folder / instance.id),
            "hosts": str(self._hosts),
            "name": instance.private_dns_name,
            "address": instance.private_ip,
            "router": switch.ROUTER,
            "router_mac": switch.ROUTER_MAC,
        }
        region = instance.ec2_backend.region_name
        made = Machine(Spec(**self._describe(instance, spec)), region, self._folder)
        moto_side.CONSOLES[instance.id] = made.console_output
        return made

    def _name(self, address: str, name: str) -> None:
        """Write the machine's name into the file that all machines have as /etc/hosts."""
        with self._hosts.open("a") as hosts:
            hosts.write(f"{address} {name} {name.partition('.')[0]}\n")

    def _note_end(self, instance: Any, machine: Machine) -> None:
        """Tell AWS that a machine shut itself down, but nothing of a machine that was killed."""
        if not machine.lost:
            reason = "Client.InstanceInitiatedShutdown"
            moto_side.ended(instance, reason, f"{reason}: Instance initiated shutdown")
