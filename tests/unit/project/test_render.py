"""The renderer of templates in long-lived processes."""

from __future__ import annotations

import jinja2
import pytest

from trialfleet import render


def test_a_process_keeps_its_templates_while_an_update_changes_the_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The values that a service hands to a template are those of its own release."""
    files = {"job.j2": "{{ old }}"}
    monkeypatch.setattr(render._environment(), "loader", jinja2.DictLoader(files))
    assert render.render_template("job.j2", old=1) == "1"

    files["job.j2"] = "{{ new }}"
    assert render.render_template("job.j2", old=2) == "2"
