"""Shells complete commands, options and names by what `trialfleet completion` prints."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


PROGRAM = Path(sys.executable).with_name("trialfleet")

# zsh completes on a terminal alone, here in one without a .zshrc: its Tab completes a word, or
# lists what there is.
ZSH = r"""
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "PROMPT='ready> ' RPROMPT=''; cd '$1'"
zpty -w shell 'eval "$(trialfleet completion zsh)"; print loaded-$((40 + 2))'
zpty -r shell seen '*loaded-42*'
zpty -n -w shell "$2"$'\t'
deadline=$((SECONDS + 60))
seen=''
while [[ $seen != *$3* && $SECONDS -lt $deadline ]]; do
    zpty -r -t shell part && seen+=$part || sleep 0.05
done
print -r -- "$seen"
zpty -d shell
"""


MODELS = {  # their regions, by study and folder
    ("sales", "UK-Ireland-1"): "UK & Ireland",
    ("sales", "Cote"): "Côte d'Ivoire",
    ("sales", "Nordics"): "Nordics",
    ("own", "Nordics"): "Nordics",
    ("own", "Price"): 'a "b" $c',
}


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with two runs, and with models of other studies."""
    for run in ("demo/2026-01-02", "demo/other"):
        (tmp_path / "runs" / run).mkdir(parents=True)
        (tmp_path / "runs" / run / "study.json").touch()
    for (study, folder), region in MODELS.items():
        for run in ("r1", "r2"):
            model = tmp_path / "models" / study / folder / run
            model.mkdir(parents=True)
            provenance = {"study": study, "region": region, "run": run}
            (model / "provenance.json").write_text(json.dumps(provenance))
        (model.parent / "latest").symlink_to("r2")
    return tmp_path


CASES = [
    ("trialfleet compl", "completion"),
    ("trialfleet pool sta", "status"),
    ("trialfleet status --wat", "--watch"),
    ("trialfleet status oth", "other"),
]


def run_in_shell(shell: str, script: str, *words: str, here: Path) -> str:
    """Return the answer of this machine's shell; skip the test where the shell is missing."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    environment = {**os.environ, "PATH": f"{PROGRAM.parent}:{os.environ['PATH']}", "TERM": "dumb"}
    done = subprocess.run(
        [shell, *(["-f"] if shell == "zsh" else []), "-c", script, shell, *words],
        cwd=here, env={**environment, "HOME": str(here)}, capture_output=True, text=True,
        check=False, timeout=180,
    )  # fmt: skip
    return done.stdout + done.stderr


IN_BASH = r"""
eval "$(trialfleet completion bash)"
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
$(complete -p trialfleet | sed 's/.*-F \([^ ]*\).*/\1/') trialfleet
printf '%s\n' "${COMPREPLY[@]}"
"""


def in_bash(here: Path, *words: str) -> list[str]:
    """Return bash's replacement of the last of some words, with or without a quote before it."""
    return run_in_shell("bash", IN_BASH, *words, here=here).splitlines()


@pytest.mark.parametrize(("line", "meant"), CASES)
def test_bash_completes(here: Path, line: str, meant: str) -> None:
    assert meant in in_bash(here, *line.split())


@pytest.mark.parametrize(
    ("line", "region"),
    [
        ("UK", "UK & Ireland"),
        (r"UK\ \&", "UK & Ireland"),
        ("'UK &", "UK & Ireland"),
        ('"C', "Côte d'Ivoire"),
        ("'C", "Côte d'Ivoire"),
        ("C", "Côte d'Ivoire"),
        ('"a', 'a "b" $c'),
    ],
)
def test_bash_completes_names_with_quotes(here: Path, line: str, region: str) -> None:
    (reply,) = in_bash(here, "trialfleet", "models", line)
    quote = line[0] if line[0] in "\"'" else ""  # is on the line already
    assert run_in_shell("bash", f"printf %s {quote}{reply}{quote}", here=here) == region


def test_models_of_all_studies_are_offered(here: Path) -> None:
    regions = ["own/Nordics", r"a\ \"b\"\ \$c", "sales/Nordics"]
    assert set(regions) <= set(in_bash(here, "trialfleet", "models", ""))
    assert "Nordics" not in in_bash(here, "trialfleet", "models", "")
    offered = in_bash(here, "trialfleet", "rollback", "--study", "sales", "N")
    assert offered == ["Nordics"]


def test_runs_of_a_region_are_offered(here: Path) -> None:
    assert in_bash(here, "trialfleet", "rollback", "own/Nordics", "--to", "") == ["r1", "r2"]
    assert in_bash(here, "trialfleet", "models", "sales/Nordics", "--card", "r") == ["r1", "r2"]


def test_promote_is_offered_runs_and_no_region(here: Path) -> None:
    offered = in_bash(here, "trialfleet", "promote", "")
    assert set(offered) == {"2026-01-02", "other"}


@pytest.mark.parametrize(("line", "meant"), CASES)
def test_fish_completes(here: Path, line: str, meant: str) -> None:
    script = f"trialfleet completion fish | source; complete -C '{line}'"
    assert meant in run_in_shell("fish", script, here=here).split()


@pytest.mark.parametrize(("line", "meant"), CASES)
def test_zsh_completes(here: Path, line: str, meant: str) -> None:
    assert meant in run_in_shell("zsh", ZSH, str(here), line, meant, here=here)
