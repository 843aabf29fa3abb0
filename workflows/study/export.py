"""The keys `keep:`, `export:` and `publish:` of a study: where its models go, and which stay."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field

from trialfleet.sections import (
    Count,
    OneLine,
    Pattern,
    Positive,
    Refused,
    Section,
    refusal,
)
from trialfleet.workflows.study.checks import SCHEME
from trialfleet.workflows.study.notify import Variable, check_public_url
from trialfleet.workflows.study.paths import (
    Keys,
    Problem,
    UnusableStudyError,
    make_files_absolute,
)

_BUCKET = r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"
_PREFIX = r"[A-Za-z0-9!_.*'()=-]+"  # characters that S3's manual calls safe in object names
S3_FOLDER = rf"s3://{_BUCKET}(/{_PREFIX})*/?"
DEFAULT_FOLDER = "models"
NEEDED = "mlflow"  # the module, which mlflow-skinny has, too
_INSTALL = "python3 -m pip install 'mlflow-skinny>=3.17' (or mlflow, 3.17 or newer)"

S3Folder = Annotated[str, Pattern(S3_FOLDER, "s3://BUCKET or s3://BUCKET/PREFIX")]


def check_publish(value: str) -> str:
    """Return `value` if it is a local folder, an S3 folder or "none"; otherwise raise an error."""
    scheme = SCHEME.match(value)
    if scheme and not re.fullmatch(S3_FOLDER, value):
        raise refusal(f"{value!r} is not a folder: write a path, s3://BUCKET/PREFIX, or none")
    return value


_check_server = partial(check_public_url, instead="give user, and password_file or password_env")


class Keep(Section):
    """Limits on the number and age of a region's models. The current model is always kept."""

    count: Count | None = Field(None, description="Number of the newest models to keep.")
    days: Positive | None = Field(None, description="Maximum age in days of models to keep.")

    def problems(self) -> Iterator[Refused]:
        """Yield a problem if no key is given."""
        if self.count is None and self.days is None:
            yield (), "needs count, days or both", {}


class Mlflow(Section):
    """An MLflow tracking server with a model registry."""

    uri: Annotated[str, BeforeValidator(_check_server)] = Field(
        repr=False, description="Its URL, such as https://mlflow.example.org."
    )
    experiment: OneLine | None = Field(
        None, description="The experiment for the runs (default: the study's name)."
    )
    trials: bool = Field(
        default=False,
        description="Whether to log the trials, too, as child runs of the model's run.",
    )
    user: OneLine | None = Field(None, description="User name, if the server requires a login.")
    password_file: OneLine | None = Field(
        None, description="A file on the access point with the password."
    )
    password_env: Variable | None = Field(
        None,
        description="An environment variable with the password, set for the process that exports.",
    )
    token_file: OneLine | None = Field(
        None, description="A file with a bearer token, instead of user and password."
    )
    token_env: Variable | None = Field(
        None, description="An environment variable with the bearer token."
    )

    def problems(self) -> Iterator[Refused]:
        """Yield what is wrong with the login."""
        passwords = [each for each in (self.password_file, self.password_env) if each]
        tokens = [each for each in (self.token_file, self.token_env) if each]
        if len(passwords) != (self.user is not None):
            yield (), "needs user and either password_file or password_env", {}
        elif len(tokens) + len(passwords) > 1:
            text = "must have only one of password_file, password_env, token_file and token_env"
            yield (), text, {}

    def resolve(self, folder: Path, keys: Keys) -> Mlflow:
        """Return a copy with absolute paths.

        UnusableStudyError if no MLflow package is installed, or if a file can't be read.
        """
        if importlib.util.find_spec(NEEDED) is None:
            text = f"needs the package mlflow-skinny on the manager: {_INSTALL}"
            raise UnusableStudyError(Problem(keys, text))
        return make_files_absolute(self, ("password_file", "token_file"), folder, keys)


class Export(Section):
    """Destinations to which published models are copied, in addition to the publish folder."""

    s3: S3Folder | None = Field(None, description="A copy of the publish folder in S3.")
    mlflow: Mlflow | None = None

    def problems(self) -> Iterator[Refused]:
        """Yield a problem if no key is given."""
        if self.s3 is None and self.mlflow is None:
            yield (), "needs s3, mlflow or both", {}

    def resolve(self, folder: Path) -> Export:
        """Return these destinations with absolute paths; UnusableStudyError if one is unusable."""
        mlflow = self.mlflow and self.mlflow.resolve(folder, ("export", "mlflow"))
        return self.model_copy(update={"mlflow": mlflow})
