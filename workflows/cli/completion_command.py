"""`trialfleet completion SHELL`: completion scripts for shells."""

from __future__ import annotations

import click
from click.shell_completion import BashComplete, get_completion_class

VARIABLE = "_TRIALFLEET_COMPLETE"  # with which click answers a shell
# Click's script needs zsh's own completion, which an empty .zshrc doesn't load.
_FIRST = {"zsh": "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i }\n"}


class _Bash(BashComplete):
    """Click's completion for bash. Names are quoted, because bash inserts them unchanged."""

    source_template = r"""
%(complete_func)s() {
    local IFS=$'\n' type value typed=${COMP_WORDS[COMP_CWORD]}
    COMPREPLY=()
    while IFS=',' read -r type value; do
        case $type in
        dir) compopt -o dirnames ;;
        file) compopt -o default ;;
        plain)
            case $typed in  # bash leaves a quote that was opened where it is
            "'"*) value=${value//"'"/"'\\''"} ;;
            '"'*) value=$(sed 's/[\\"$`]/\\&/g' <<< "$value") ;;
            *) printf -v value %%q "$value" ;;
            esac
            COMPREPLY+=("$value") ;;
        esac
    done < <(env COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD="$COMP_CWORD" \
        %(complete_var)s=bash_complete "$1")
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a script that makes SHELL complete commands, options, and names of runs and regions.

    For bash, add this line to ~/.bashrc: eval "$(trialfleet completion bash)". For zsh, add this
    line to ~/.zshrc: eval "$(trialfleet completion zsh)". For fish, run this once: trialfleet
    completion fish > ~/.config/fish/completions/trialfleet.fish
    """
    kind = _Bash if shell == "bash" else get_completion_class(shell)
    assert kind is not None, f"click knows {shell}"
    source = kind(ctx.find_root().command, {}, "trialfleet", VARIABLE).source()
    click.echo(_FIRST.get(shell, "") + source)
