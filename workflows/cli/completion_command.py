"""`trialfleet completion SHELL`: what makes a shell complete commands, options and names."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

VARIABLE = "_TRIALFLEET_COMPLETE"  # by which click answers a shell's question
# What click prints needs zsh's own completion, which a bare .zshrc doesn't begin.
_FIRST = {"zsh": "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i }\n"}


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print what makes SHELL complete commands, options, and the names of runs and regions.

    bash: eval "$(trialfleet completion bash)" in ~/.bashrc; zsh: the same, with zsh, in ~/.zshrc;
    fish: trialfleet completion fish > ~/.config/fish/completions/trialfleet.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None, f"click knows {shell}"
    source = kind(ctx.find_root().command, {}, "trialfleet", VARIABLE).source()
    click.echo(_FIRST.get(shell, "") + source)
