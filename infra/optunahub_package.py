"""Write RegionSampler as a package for OptunaHub's registry, independent of trialfleet.

    python infra/optunahub_package.py    into build/optunahub/package/samplers/region_gp

The sampler's module is copied, with all trialfleet modules that it needs. Imports among the
copies become relative, and ruff formats the copies by the registry's rules. All other files are
rendered from templates.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from trialfleet.render import render_template

ROOT = Path(__file__).resolve().parents[1]
CODE = ROOT / "src"
TARGET = ROOT / "build/optunahub/package/samplers/region_gp"
SAMPLING = ".".join(("trialfleet", "optimizer", "sampling"))  # read, never imported
SAMPLER = f"{SAMPLING}.region_sampler"
FOLDERS = (f"{SAMPLING}.", "trialfleet.")  # whose modules are at the package's top
FILES = ("LICENSE", "README.md", "__init__.py", "example.py")
PACKAGES = ("numpy", "optuna", "scipy")
# as in the pyproject.toml of the registry, whose ruff is 0.15
RUFF = ("--isolated", "--quiet", "--target-version=py310", "--config=line-length=99")
RULES = (
    "--select=E4,E7,E9,F,I",
    "--config=lint.isort.known-third-party=['optuna']",
    "--config=lint.isort.lines-after-imports=2",
    "--config=lint.isort.force-single-line=true",
    "--config=lint.isort.force-sort-within-sections=true",
    "--config=lint.isort.order-by-type=false",
)
_IMPORT = re.compile(r"^( *)from (trialfleet[\w.]*) import ", re.MULTILINE)


def main() -> None:
    """Write the package and print its path."""
    write_package(TARGET)
    print(TARGET.relative_to(ROOT))


def write_package(target: Path) -> None:
    """Write the package into the folder `target`, which is emptied first."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for module in sorted(needed_modules(SAMPLER)):
        path = target.joinpath(*place(module)).with_suffix(".py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(make_imports_relative(module), encoding="utf-8")
    values = {"optuna": version("optuna"), "packages": requirements(), "papers": papers()}
    for name in FILES:
        text = render_template(f"optunahub/{name}.j2", **values)
        (target / name).write_text(text, encoding="utf-8")
    ruff = [sys.executable, "-m", "ruff"]
    subprocess.run([*ruff, "check", "--fix", *RUFF, *RULES, target], check=True)
    subprocess.run([*ruff, "format", *RUFF, target], check=True)


def needed_modules(module: str) -> set[str]:
    """Return `module` and all trialfleet modules that it imports, directly or indirectly.

    The name of a package in the result ends in `.__init__`.
    """
    found: set[str] = set()
    waiting = [module]
    while waiting:
        module = waiting.pop()
        if module not in found:
            found.add(module)
            waiting += imported_modules(module)
    return found


def imported_modules(module: str) -> Iterator[str]:
    """Yield the trialfleet modules that `module` imports, and the package that `module` is in."""
    folder = f"{module.rpartition('.')[0]}.__init__"
    if len(place(folder)) > 1:
        yield folder
    for node in ast.walk(ast.parse(source(module).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("trialfleet"):
            names = [f"{node.module}.{name.name}" for name in node.names]
            modules = [name for name in names if source(name).is_file()]
            yield from modules or [str(node.module)]


def source(module: str) -> Path:
    """Return the file of a trialfleet module."""
    return CODE.joinpath(*module.split(".")).with_suffix(".py")


def place(module: str) -> list[str]:
    """Return the parts of a module's path inside the new package."""
    for folder in FOLDERS:
        if module.startswith(folder):
            return module.removeprefix(folder).split(".")
    raise ValueError(f"{module} is not a module of trialfleet")


def make_imports_relative(module: str) -> str:
    """Return a module's text with its imports of trialfleet changed into relative ones."""
    folders = place(module)[:-1]

    def relative(found: re.Match[str]) -> str:
        there = place(found[2])
        common = 0
        while folders[common : common + 1] == there[common : common + 1] != []:
            common += 1
        dots = "." * (len(folders) - common + 1)
        return f"{found[1]}from {dots}{'.'.join(there[common:])} import "

    return _IMPORT.sub(relative, source(module).read_text(encoding="utf-8"))


def requirements() -> list[str]:
    """Return the sampler's requirements for pip, as pyproject.toml has them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [each for each in project["dependencies"] if re.split(r"\W", each)[0] in PACKAGES]


def papers() -> list[str]:
    """Return a line for each paper that the docstring of the Gaussian process's module names."""
    text = ast.get_docstring(ast.parse(source(f"{SAMPLING}.gp.__init__").read_text("utf-8"))) or ""
    text = text.partition("\nPapers\n")[2]
    return [" ".join(entry.split()) for entry in re.split(r"\n {4}(?! )", f"\n{text}") if entry]


if __name__ == "__main__":
    main()
