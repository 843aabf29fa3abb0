"""Write RegionSampler as a package for OptunaHub's registry, independent of trialfleet.

    python infra/optunahub_package.py    into build/optunahub/package/samplers/region_gp

The sampler's module is copied, with the trialfleet modules that it needs. Imports among the
copies become relative. All other files are rendered from templates. In a clone of the registry, its
pre-commit hooks format the files.
"""

from __future__ import annotations

import ast
import re
import shutil
import tomllib
from importlib.metadata import version
from pathlib import Path

from trialfleet.render import render_template

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "build/optunahub/package/samplers/region_gp"
SAMPLING = ROOT / "optimizer/sampling"
GP = SAMPLING / "gp"
MODULES = (  # the sampler and all modules that it imports; those in `gp` stay in a folder `gp`
    ROOT / "src/trialfleet/objective.py",
    *(SAMPLING / f"{name}.py" for name in ("conditions", "region_sampler", "seeds")),
    *sorted(GP.glob("*.py")),
)
FILES = ("LICENSE", "README.md", "__init__.py", "example.py")
PACKAGES = ("numpy", "optuna", "scipy")
_IMPORT = re.compile(r"^( *from )trialfleet\.(?:optimizer\.sampling\.)?", re.MULTILINE)


def main() -> None:
    """Write the package and print its path."""
    write_package(TARGET)
    print(TARGET.relative_to(ROOT))


def write_package(target: Path) -> None:
    """Write the package into the folder `target`, which is emptied first."""
    shutil.rmtree(target, ignore_errors=True)
    (target / GP.name).mkdir(parents=True)
    for module in MODULES:
        is_gp = module.parent == GP
        place = target / GP.name if is_gp else target
        text = _IMPORT.sub(r"\1.." if is_gp else r"\1.", module.read_text(encoding="utf-8"))
        (place / module.name).write_text(text, encoding="utf-8")
    values = {"optuna": version("optuna"), "packages": requirements(), "papers": papers()}
    for name in FILES:
        text = render_template(f"optunahub/{name}.j2", **values)
        (target / name).write_text(text, encoding="utf-8")


def requirements() -> list[str]:
    """Return the sampler's requirements for pip, as pyproject.toml has them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [each for each in project["dependencies"] if re.split(r"\W", each)[0] in PACKAGES]


def papers() -> list[str]:
    """Return a line for each paper that the docstring of the Gaussian process's module names."""
    text = ast.get_docstring(ast.parse((GP / "__init__.py").read_text(encoding="utf-8"))) or ""
    text = text.partition("\nPapers\n")[2]
    return [" ".join(entry.split()) for entry in re.split(r"\n {4}(?! )", f"\n{text}") if entry]


if __name__ == "__main__":
    main()
