"""Jinja templates, and filters that quote values, so that no value can add code.

Templates of pages (`HTML`) escape every value. Other templates use filters: `dag_string` for a path
in a DAG file, `classad_string` for a text in a submit file or a DAG's SET_JOB_ATTR, `shell` for a
word of a shell script, `unit_word` and `unit_text` for a systemd unit. Values without a filter are
numbers, trialfleet's own choices, or texts that were checked when the study was read.
"""

from __future__ import annotations

import functools
import re
import shlex
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jinja2

HTML = ("html.j2", "css.j2")  # the endings of templates for pages


def render_template(template: str, /, **values: Any) -> str:
    """Render a template, such as `dag/study.dag.j2`. UndefinedError if a value is missing."""
    return _environment().get_template(template).render(**values)


@functools.cache
def _environment() -> jinja2.Environment:
    import jinja2  # imported late: reading a study needs no jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("trialfleet.templates", ""),
        auto_reload=False,  # a service keeps its templates through an update
        undefined=jinja2.StrictUndefined,
        autoescape=jinja2.select_autoescape(HTML),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "dag_string": dag_string,
        "classad_string": classad_string,
        "shell": shell_word,
        "unit_word": unit_word,
        "unit_text": unit_text,
    }
    return environment


def dag_string(value: object) -> str:
    r"""Return `value` as one token of a DAG file: in double quotes, with `"` and `\` escaped."""
    text = _one_line(str(value))
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def classad_string(value: object) -> str:
    """Return `value` as a ClassAd string, in unchanged UTF-8.

    AssertionError if the text needs an escape, which submit files and queries read differently.
    """
    text = _one_line(str(value))
    assert not needs_escape(text), f"no ClassAd string: {text!r}"
    return f'"{text}"'


def needs_escape(text: str) -> bool:
    """Return whether HTCondor would change `text` in a ClassAd string or in a submit file."""
    return '"' in text or "\\" in text or has_macro(text)


def is_transferable(path: str) -> bool:
    """Return whether HTCondor's lists of files, which have no quoting, can contain `path`."""
    return "," not in path and path == path.strip() and not needs_escape(path)


def has_macro(text: str) -> bool:
    """Return whether the submit language would expand a part of `text`: $(X), $ENV(X), $$."""
    return re.search(r"\$\$|\$\w*\(", text) is not None


def shell_word(value: object) -> str:
    """Return `value` as one word of a POSIX shell command."""
    return shlex.quote(_one_line(str(value)))


def unit_word(value: object) -> str:
    """Return `value` as one word of a command in a systemd unit, quoted and escaped."""
    text = unit_text(value).replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return f'"{text}"'


def unit_text(value: object) -> str:
    """Return `value` as a text of a systemd unit, in which each `%` is escaped."""
    return _one_line(str(value)).replace("%", "%%")


def _one_line(text: str) -> str:
    assert not any(c in text for c in "\n\r\0"), f"a line break reached a template: {text!r}"
    return text
