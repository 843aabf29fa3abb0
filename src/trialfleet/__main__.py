"""The entry point of `trialfleet` and `python -m trialfleet`. It handles Ctrl-C from the start."""

from __future__ import annotations

import atexit
import gc

from trialfleet import ctrl_c

_OBJECTS = 50_000  # allocated before Python searches for cyclic garbage; there is little of it


def main() -> None:
    """Run the command line."""
    ctrl_c.answer_from_the_start()
    gc.set_threshold(_OBJECTS)
    atexit.register(gc.freeze)  # at its end, Python would search all objects: a fifth of a command
    from trialfleet.workflows.cli.main import main as command_line

    command_line(prog_name="trialfleet")


if __name__ == "__main__":
    main()
