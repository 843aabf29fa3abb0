"""Programs whose command lines are stored in files and run later, each with a fixed name.

    python -I -m trialfleet.programs NAME [ARGUMENT...]

These command lines are in runs' folders, in systemd units and in pools. They must still work after
an update of trialfleet, which may move modules. So a program's name never changes, and only this
file knows the program's module. The first argument of most programs is a run's folder.

DAGMan runs `ask-service` before and after each trial. To start fast, this program uses only the
standard library, and its command line is `python -I -S` with the path of this file.
"""

from __future__ import annotations

import atexit
import gc
import sys

TYPE_CHECKING = False  # typing is slow to import
if TYPE_CHECKING:
    from types import ModuleType

PROGRAMS = {
    "ask-service": "trialfleet.optimizer.service_client",
    "autoscale": "trialfleet.workflows.control.scripts.autoscale_program",
    "export": "trialfleet.workflows.control.run.export_program",
    "keep-gangs": "trialfleet.workflows.control.gang.keeper",
    "notify": "trialfleet.workflows.control.notify.run_alerts",
    "publish": "trialfleet.workflows.control.scripts.publish_program",
    "report": "trialfleet.workflows.control.scripts.report_program",
    "schedule-alerts": "trialfleet.workflows.control.daily.schedule",
    "serve": "trialfleet.workflows.control.scripts.script_requests",
    "supervise": "trialfleet.workflows.control.dagman.supervisor",
}
_ALONE = "ask-service"  # needs the standard library alone


def command(name: str, *arguments: str) -> list[str]:
    """Return a program's command line, which still works after an update of trialfleet."""
    assert name in PROGRAMS, name
    start = ["-S", __file__] if name == _ALONE else ["-m", "trialfleet.programs"]
    return [sys.executable, "-I", *start, name, *arguments]


def main() -> None:
    """Run the program that the command line names."""
    name = sys.argv[1] if sys.argv[1:] else ""
    if name not in PROGRAMS:
        known = ", ".join(PROGRAMS)
        sys.stderr.write(f"trialfleet has no program {name!r}; its programs are {known}\n")
        sys.exit(2)
    sys.argv[:2] = [f"trialfleet.programs {name}"]
    atexit.register(gc.freeze)  # at its end, Python would search all objects: 0.4 s of a service
    sys.exit(_import_module(PROGRAMS[name]).main())


def _import_module(module: str) -> ModuleType:
    """Import a program's module, from the file's path if this file runs without the package."""
    if __package__:
        from importlib import import_module

        return import_module(module)
    _, *folders, file = module.split(".")
    sys.path.append("/".join((__file__.rpartition("/")[0], *folders)))
    return __import__(file)


if __name__ == "__main__":
    main()
