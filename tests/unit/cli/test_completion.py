"""Shells complete commands, options and names by what `trialfleet completion` prints."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with two runs."""
    for run in ("demo/2026-01-02", "demo/other"):
        (tmp_path / "runs" / run).mkdir(parents=True)
        (tmp_path / "runs" / run / "study.yaml").touch()
    return tmp_path


CASES = [
    ("trialfleet compl", "completion"),
    ("trialfleet pool sta", "status"),
    ("trialfleet status --wat", "--watch"),
    ("trialfleet status oth", "other"),
]


def asked(shell: str, script: str, *words: str, here: Path) -> str:
    """What a shell answers, the one of this machine; the test is skipped where it is missing."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    environment = {**os.environ, "PATH": f"{PROGRAM.parent}:{os.environ['PATH']}", "TERM": "dumb"}
    done = subprocess.run(
        [shell, *(["-f"] if shell == "zsh" else []), "-c", script, shell, *words],
        cwd=here, env={**environment, "HOME": str(here)}, capture_output=True, text=True,
        check=False, timeout=180,
    )  # fmt: skip
    return done.stdout + done.stderr


@pytest.mark.parametrize(("typed", "meant"), CASES)
def test_bash_completes(here: Path, typed: str, meant: str) -> None:
    script = """
    eval "$(trialfleet completion bash)"
    read -ra COMP_WORDS <<< "$1"; COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    COMP_LINE=$1 COMP_POINT=${#1}
    $(complete -p trialfleet | sed 's/.*-F \\([^ ]*\\).*/\\1/') trialfleet
    printf '%s\\n' "${COMPREPLY[@]}"
    """
    assert meant in asked("bash", script, typed, here=here).split()


@pytest.mark.parametrize(("typed", "meant"), CASES)
def test_fish_completes(here: Path, typed: str, meant: str) -> None:
    script = f"trialfleet completion fish | source; complete -C '{typed}'"
    assert meant in asked("fish", script, here=here).split()


@pytest.mark.parametrize(("typed", "meant"), CASES)
def test_zsh_completes(here: Path, typed: str, meant: str) -> None:
    assert meant in asked("zsh", ZSH, str(here), typed, meant, here=here)
