"""Tests of the package for OptunaHub: independent of trialfleet, with the same proposals."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import optuna
import pytest

from trialfleet.infra.optunahub_package import write_package
from trialfleet.optimizer import RegionSampler

pytestmark = pytest.mark.slow

PROVIDED = {"__future__", "numpy", "optuna", "scipy"}
# The beginning of the tests below: `load()` is optunahub's load_local_module or its equivalent.
LOAD = """
import importlib.util, json, sys, types
sys.modules["trialfleet"] = None

def load():
    root = {root!r}
    try:
        import optunahub
    except ImportError:
        sys.modules["optunahub_registry"] = types.ModuleType("optunahub_registry")
    else:
        return optunahub.load_local_module("samplers/region_gp", registry_root=root)
    name = "optunahub_registry.package.samplers.region_gp"
    path = root + "/samplers/region_gp/__init__.py"
    spec = importlib.util.spec_from_file_location(name, path)
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
"""
OPTIMIZED = """
import numpy as np, optuna

def objective(trial):
    kind = trial.suggest_categorical("kind", ["a", "b"])
    x = trial.suggest_float("x", 1e-3, 1, log=True)
    if trial.number == 3:
        raise optuna.TrialPruned
    return x + (trial.suggest_int("n", 1, 9) if kind == "a" else 3)

def optimized(sampler):
    study = optuna.create_study(sampler=sampler)
    study.optimize(objective, n_trials=10)
    return [trial.params for trial in study.trials]
"""
CASES = """
import pytest
from optuna.testing.pytest_samplers import (
    BasicSamplerTestCase, RelativeSamplerTestCase, SingleOnlySamplerTestCase
)

class TestPackage(BasicSamplerTestCase, RelativeSamplerTestCase, SingleOnlySamplerTestCase):
    @pytest.fixture
    def sampler(self):
        return lambda: module.RegionSampler(n_startup_trials=0)
"""


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("registry") / "package"
    write_package(root / "samplers/region_gp")
    return root


def python(registry: Path, *arguments: str) -> str:
    """Run Python isolated from this clone and its packages."""
    command = [sys.executable, "-P", *arguments]
    done = subprocess.run(command, cwd=registry, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_package_proposes_the_same_points_as_our_sampler(registry: Path) -> None:
    code = LOAD.format(root=str(registry)) + OPTIMIZED
    code += "print(json.dumps(optimized(load().RegionSampler(seed=5, n_startup_trials=4))))"
    known: dict[str, object] = {"np": np, "optuna": optuna}
    exec(OPTIMIZED, known)  # noqa: S102
    ours = known["optimized"](RegionSampler(seed=5, n_startup_trials=4))  # type: ignore[operator]
    assert json.loads(python(registry, "-c", code)) == ours


@pytest.mark.thorough
def test_the_package_passes_optunas_sampler_tests(registry: Path, tmp_path: Path) -> None:
    code = LOAD.format(root=str(registry)) + "module = load()\n" + textwrap.dedent(CASES)
    path = tmp_path / "test_cases.py"
    path.write_text(code)
    chosen = "numerical or categorical or mixed or dynamic or conditional or partial or multi"
    said = python(registry, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", chosen, str(path))
    passed = re.search(r"(\d+) passed", said)
    assert passed
    assert int(passed[1]) > 40


def test_the_packages_example_runs(registry: Path) -> None:
    if find_spec("optunahub") is None:
        pytest.skip("the example loads the package by optunahub")
    code = LOAD.format(root=str(registry)) + (
        "import runpy; runpy.run_path(sys.argv[1], run_name='__main__')"
    )
    said = python(registry, "-c", code, str(registry / "samplers/region_gp/example.py"))
    assert "rate" in said


def test_the_package_imports_only_itself_and_declared_packages(registry: Path) -> None:
    modules = [path for path in registry.rglob("*.py") if path.name != "example.py"]
    assert len(modules) > 10
    for path in modules:
        assert "trialfleet" not in path.read_text(), path
        for node in ast.walk(ast.parse(path.read_text())):
            names = [name.name for name in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [str(node.module)]
            for name in {name.partition(".")[0] for name in names}:
                assert name in PROVIDED | sys.stdlib_module_names, f"{path}: {name}"


def test_the_readme_has_the_sections_that_the_registry_requires(registry: Path) -> None:
    folder = registry / "samplers/region_gp"
    page = (folder / "README.md").read_text()
    header = dict(re.findall(r"^(\w+): (.+)$", page.split("---\n")[1], re.MULTILINE))
    assert header.keys() == {"author", "title", "description", "tags", "optuna_versions", "license"}
    assert header["tags"].startswith("[sampler, ")
    assert header["license"] == "MIT License"
    assert (folder / "LICENSE").read_text().startswith("MIT License\n")
    assert optuna.__version__ in header["optuna_versions"]
    assert not re.search(r"</?[a-z]+>", page)  # the registry removes HTML
    references = page.partition("### Reference\n")[2].strip().splitlines()
    assert len(references) > 8
    assert all(line.startswith("- ") and re.search(r"\(\d{4}", line) for line in references)
    for section in ("Abstract", "APIs", "Installation", "Example"):
        assert f"## {section}\n" in page
