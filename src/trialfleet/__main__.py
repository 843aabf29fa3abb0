"""`trialfleet`, and `python -m trialfleet`: Ctrl-C is answered before anything else is loaded."""

from __future__ import annotations

from trialfleet import ctrl_c


def main() -> None:
    """Run the command line."""
    ctrl_c.answer_from_the_start()
    from trialfleet.workflows.cli.main import main as command_line

    command_line(prog_name="trialfleet")


if __name__ == "__main__":
    main()
