"""Places of a region's models."""

from __future__ import annotations

from pathlib import Path

import pytest

from trialfleet.errors import InputError
from trialfleet.workflows.facts.models.folders import region_models_folder
from trialfleet.workflows.study.spec import Study


def study_called(name: str, folder: Path) -> Study:
    return Study.model_validate(
        {
            "name": name,
            "regions": ["A", "B"],
            "objective": {"metric": "loss", "direction": "minimize"},
            "search_space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
            "trainer": {"command": ["sh"]},
            "accelerator": "cpu",
        }
    ).resolve(folder)


@pytest.mark.parametrize("place", ["ours", "ours/A"])
def test_no_models_are_put_into_a_published_model(tmp_path: Path, place: str) -> None:
    ours = study_called("ours", tmp_path)
    model = Path(ours.publish) / place
    model.mkdir(parents=True)
    (model / "provenance.json").write_text('{"study": "x", "run": "ours"}')
    with pytest.raises(InputError, match="is a published model"):
        region_models_folder(ours, "A")
