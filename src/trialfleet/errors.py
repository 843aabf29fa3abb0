"""Every error that trialfleet raises for a person to read.

TrialfleetError           exit code 1: something outside this command went wrong
├── InputError            exit code 2: what the user gave can't be used
│   └── StudyError        … in a study file: names file, line, key, value and choices
├── PoolError             HTCondor is missing, down, or refused what was asked of it
├── OptimizerError        the optimiser's service can't be reached or its storage can't be used
└── FleetError            AWS can't be reached or refused what was asked of it

The message is the whole story for the user: what was wrong, the value given, the valid choices,
where to look. Mistakes of the program itself are plain `AssertionError`s and never of these types.
"""

from __future__ import annotations


class TrialfleetError(Exception):
    """Base of all errors that the command line prints without a traceback."""

    exit_code = 1


class InputError(TrialfleetError):
    """An argument, a file or a path given by the user can't be used."""

    exit_code = 2


class StudyError(InputError):
    """A study file is wrong; one line per problem, each with its place in the file."""


class PoolError(TrialfleetError):
    """HTCondor is not installed, not running, or refused a request."""


class OptimizerError(TrialfleetError):
    """The optimiser's service or its storage can't be used."""


class FleetError(TrialfleetError):
    """AWS can't be reached, or refused a request; names the permission where one is missing."""
