"""Only the module `untrusted_files` opens files of jobs: checked by parsing, not by running."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "workflows/facts/run_folder/folder.py"
TOPS = ("workflows", "optimizer", "infra")
PLACES = {"best", "gate", "check", "place", "_place"}  # attributes that are a trial's folder
BELOW = {"glob", "iterdir", "of_proc", "relative_to", "resolve", "rglob", "with_name"}
OPENING = {
    *("chmod", "glob", "hardlink_to", "iterdir", "open", "read_bytes", "read_text", "rglob"),
    *("symlink_to", "touch", "write_bytes", "write_text"),
}
OPENERS = {
    *("JobEventLog", "copy", "copy2", "copyfile", "copytree", "fromfile", "genfromtxt", "load"),
    *("loadtxt", "open", "read_csv", "read_json", "read_record", "replace_file", "scandir", "walk"),
    *("write_atomic", "write_json"),
}
READER = "untrusted_files"
# Functions that open one all the same, and why they may.
KNOWN = {
    ("workflows/facts/jobs/unpacking.py", "_put"): "what we unpacked ourselves",
    ("workflows/control/plan/pool_check.py", "_dry_run"): "a folder of our own, without a job",
    ("workflows/control/plan/pool_check.py", "trial_ad"): "a folder of our own, without a job",
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def names_of_files() -> set[str]:
    """Return the attributes of a trial's folder that are paths."""
    classes = [
        node for node in ast.parse(FOLDER.read_text()).body if isinstance(node, ast.ClassDef)
    ]
    trial = next(node for node in classes if node.name == "TrialFolder")
    names = {node.name for node in trial.body if isinstance(node, ast.FunctionDef)}
    return names | {name for node in trial.body for name, _ in bound(node)} | {"root"}


class Reading:
    """Follows a trial's files through the functions of some modules.

    Attributes:
        handed: of each function by its module and name, the parameters that are given such a file.
    """

    def __init__(self, modules: dict[str, ast.Module]) -> None:
        self._functions = {
            (name, node.name): node
            for name, tree in modules.items()
            for node in ast.walk(tree)
            if isinstance(node, Function)
        }
        nodes = {key: [*ast.walk(function)] for key, function in self._functions.items()}
        self._calls = {
            key: [node for node in own if isinstance(node, ast.Call)] for key, own in nodes.items()
        }
        self._bound = {
            key: [pair for node in own for pair in bound(node)] for key, own in nodes.items()
        }
        self._imported = {name: dict(imports(tree)) for name, tree in modules.items()}
        self.handed: dict[tuple[str, str], set[str]] = {}

    def found(self) -> Iterator[tuple[str, str, int]]:
        """Yield each place that opens a job's file: module, function, line."""
        while self._hand_over():
            pass
        for key, calls in self._calls.items():
            known = self._known(key)
            yield from ((*key, call.lineno) for call in calls if self._opens(call, known))

    def _hand_over(self) -> bool:
        """Note what functions are given; return whether any of it is new."""
        before = sum(map(len, self.handed.values()))
        for key, calls in self._calls.items():
            known = self._known(key)
            for call in calls:
                callee = self._imported[key[0]].get(called(call), (key[0], called(call)))
                if callee not in self._functions:
                    continue
                args = self._functions[callee].args.args
                names = [arg.arg for arg in args if arg.arg not in {"self", "cls"}]
                given = [*zip(names, call.args, strict=False)]
                given += [(each.arg, each.value) for each in call.keywords if each.arg]
                hit = {name for name, value in given if is_file(value, known)}
                self.handed.setdefault(callee, set()).update(hit)
        return sum(map(len, self.handed.values())) > before

    def _known(self, key: tuple[str, str]) -> set[str]:
        """Return the names in a function that are a job's files; a trial's folder ends in *."""
        function = self._functions[key]
        args = [*function.args.args, *function.args.kwonlyargs]
        known = {
            f"{arg.arg}*" for arg in args if "TrialFolder" in ast.unparse(arg.annotation or arg)
        }
        known |= self.handed.get(key, set())
        for _ in range(3):  # a name may refer to another
            for target, value in self._bound[key]:
                if is_place(value, known):
                    known.add(f"{target}*")
                elif is_file(value, known):
                    known.add(target)
        return known

    def _opens(self, call: ast.Call, known: set[str]) -> bool:
        if isinstance(call.func, ast.Attribute):
            owner = call.func.value
            if isinstance(owner, ast.Name) and owner.id == READER:
                return False
            if call.func.attr in OPENING and is_file(owner, known):
                return True
        return called(call) in OPENERS and any(is_file(arg, known) for arg in call.args)


def imports(tree: ast.Module) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield each name that a module has from another of ours, with that module and its name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("trialfleet."):
            place = "/".join((node.module or "").split(".")[1:]) + ".py"
            yield from ((each.asname or each.name, (place, each.name)) for each in node.names)


def called(call: ast.Call) -> str:
    """Return the last name of what is called."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def bound(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names that a statement gives to values, or to their parts."""
    pairs: list[tuple[ast.expr, ast.expr]] = []
    if isinstance(node, ast.Assign):
        pairs = [(target, node.value) for target in node.targets]
    elif isinstance(node, ast.NamedExpr):
        pairs = [(node.target, node.value)]
    elif isinstance(node, ast.For | ast.comprehension):
        pairs = [(node.target, node.iter)]
    elif isinstance(node, ast.withitem) and node.optional_vars:
        pairs = [(node.optional_vars, node.context_expr)]
    for target, value in pairs:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            own = zip(target.elts, value.elts, strict=False)
            yield from ((one.id, of) for one, of in own if isinstance(one, ast.Name))
        elif isinstance(target, ast.Name):
            yield target.id, value


def is_place(value: ast.expr, known: set[str]) -> bool:
    """Return whether an expression is a trial's folder."""
    match value:
        case ast.Name(id=name):
            return f"{name}*" in known
        case ast.Attribute(attr=attr):
            return attr in PLACES
        case ast.Call():
            return called(value) in {"trial", "TrialFolder"}
        case ast.BoolOp(values=values):
            return any(is_place(each, known) for each in values)
        case _:
            return False


def is_file(value: ast.expr, known: set[str]) -> bool:
    """Return whether an expression is a path in a trial's folder, or several."""
    match value:
        case ast.Name(id=name):
            return name in known
        case ast.Attribute(value=owner, attr=attr):
            if is_place(owner, known):
                return attr in FILES
            return attr == "parent" and is_file(owner, known)
        case ast.BinOp(left=left, op=ast.Div()):
            return is_file(left, known)
        case ast.Call(func=ast.Attribute(value=owner, attr=attr)) if attr in BELOW:
            return is_file(owner, known) or is_place(owner, known)
        case ast.Call(args=args) if called(value) in {"Path", "iter", "list", "sorted", "str"}:
            return any(is_file(each, known) for each in args)
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.BoolOp(values=parts):
            return any(is_file(each, known) for each in parts)
        case _:
            return False


FILES = names_of_files()


@pytest.mark.slow
def test_only_one_module_opens_what_a_job_left() -> None:
    paths = [path for top in TOPS for path in (ROOT / top).rglob("*.py")]
    modules = {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in paths}
    reading = Reading({name: tree for name, tree in modules.items() if "/examples/" not in name})
    found = [place for place in reading.found() if place[:2] not in KNOWN]
    assert not found, f"open these by trialfleet.untrusted_files: {found}"
    given = {name for (_, name), files in reading.handed.items() if files}
    assert {"last_line", "load_result", "read_events", "read_parts"} <= given


@pytest.mark.parametrize(
    "line",
    [
        "place.result.open()",
        "open(place.result)",
        "read_json(place.result)",
        "(place.gang / 'agent.0').read_text()",
        "tarfile.open(place.gang / 'a.tar')",
        "np.load(region.best.losses / 'a.npy')",
        "region.trial('a').stop.touch()",
        "file = place.err; file.read_bytes()",
        "for file in place.model.rglob('*'): file.read_bytes()",
        "reads(place.stop)",
        "shutil.copytree(self._place.model, to)",
        "write_json(place.stop, {})",
    ],
)
def test_the_check_finds_each_way_to_open_a_jobs_file(line: str) -> None:
    helper = "def reads(path): return json.loads(path.read_text())"
    source = f"def f(self, place: TrialFolder, region, to):\n    {line}\n{helper}"
    assert list(Reading({"m": ast.parse(source)}).found())
    safe = (
        "def f(place: TrialFolder): untrusted_files.read_json(place.result, 9); place.result.name"
    )
    assert not list(Reading({"m": ast.parse(safe)}).found())


def test_one_module_opens_the_event_logs_of_jobs() -> None:
    """They lie in a trial's folder, whatever variable leads there."""
    tops = ("workflows", "optimizer", "infra", "src/trialfleet")
    readers = {
        str(path.relative_to(ROOT))
        for top in tops
        for path in (ROOT / top).rglob("*.py")
        if re.search(r"\bJobEventLog\(", path.read_text())
    }
    assert readers == {"workflows/facts/jobs/executions.py"}
