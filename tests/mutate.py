"""Does any test notice if a rounding, shift, saturation or constant of numerics/ is changed?

    python tests/mutate.py [npusim/numerics/rounding.py ...] [--list]

Every constant, operator, comparison and rounding function of the named files (default: all of
npusim/numerics) is changed in turn, one at a time, in memory only; the tests of numerics and
operators then run in a child process that imports the changed module. A mutant that no test fails
on survives and is printed. Exit code 1 if any did. Error messages, docstrings and annotations are
left alone. Takes minutes a file; Linux only (fork).
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.abc
import importlib.machinery
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 120
"""A mutant that takes longer hangs, which counts as noticed."""

BINARY: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.LShift: ast.RShift,
    ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip

NAMES = {
    "shift_floor": "shift_half_up", "shift_half_up": "shift_floor",
    "shift_half_away": "shift_half_up", "shift_half_even": "shift_half_away",
    "shift_left": "shift_floor", "round_half_even": "round_half_away",
    "round_half_away": "round_half_even", "floor": "ceil", "rint": "floor", "min": "max",
    "max": "min", "minimum": "maximum", "maximum": "minimum", "fmin": "fmax", "fmax": "fmin",
    "saturate16": "_unsaturated", "abs": "int", "copysign": "fmax", "all": "any", "any": "all",
    "float32": "float64", "multiply_double_rounding": "multiply_single_rounding",
    "multiply_single_rounding": "multiply_double_rounding",
}  # fmt: skip
"""Functions and what takes their place; only where both exist under the same object."""

STRINGS = {
    "half_away": "half_up", "half_up": "half_away", "half_even": "half_away", "floor": "half_up",
    "one_step": "two_step", "two_step": "one_step", "auto": "none", "double": "single",
    "single": "double", "refuse": "off", "off": "refuse",
}  # fmt: skip

_LOWERING = "neural_art_lowering.py"
_POSITIVE = "ties of positive numbers go up either way"

EQUIVALENT: dict[tuple[str, str, str], str] = {
    (
        _LOWERING,
        "totals = np.abs(weights.reshape(weights.shape[0], -1).sum(axis=1))",
        "1 -> 2",
    ): "NumPy takes any negative number for the free axis of a reshape",
    **{
        (_LOWERING, line, "'half_away' -> 'half_up'"): _POSITIVE
        for line in (
            'rounded = round_real(math.ldexp(ratio, shift), "half_away")',
            'return round_real(np.ldexp(ratios, shift), "half_away")',
            'return round_real(np.minimum(exact, GAIN_MAX), "half_away")',
        )
    },
    (
        _LOWERING,
        "while int(rounding.shift_half_away(first * second, shift)) > rounding.INT16_MAX:",
        "shift_half_away -> shift_half_up",
    ): _POSITIVE,
}
"""(file, source line, change) -> why no test can tell it from the original."""


@dataclass(frozen=True)
class Mutant:
    """One change of one file; ``what`` says which."""

    path: Path
    line: int
    what: str
    tree: ast.Module

    @property
    def source_line(self) -> str:
        return self.path.read_text("utf-8").splitlines()[self.line - 1].strip()

    @property
    def known_equivalent(self) -> bool:
        return (self.path.name, self.source_line, self.what) in EQUIVALENT


def mutants(path: Path) -> Iterator[Mutant]:
    """Every mutant of a file, in the order of its lines."""
    original = ast.parse(path.read_text("utf-8"))
    places = list(_places(original))
    for index, place in enumerate(places):
        for what, attributes in _changes(place):
            tree = deepcopy(original)
            node = list(_places(tree))[index]
            for name, value in attributes.items():
                setattr(node, name, value)
            ast.fix_missing_locations(tree)
            yield Mutant(path, place.lineno, what, tree)


def _places(tree: ast.AST) -> Iterator[ast.expr]:
    """Expressions that compute, without messages, annotations, docstrings and defaults' types."""
    for field, value in ast.iter_fields(tree):
        if field in {"annotation", "returns", "decorator_list"}:
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.Raise | ast.Assert):
                continue
            if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                continue
            if isinstance(child, ast.keyword) and child.arg == "strict":
                continue  # a check of zip on what always has equal lengths
            if isinstance(child, ast.expr) and _changes(child):
                yield child
            yield from _places(child)


def _changes(node: ast.expr) -> list[tuple[str, dict[str, Any]]]:
    """(description, attributes of the node to set) of every change."""
    match node:
        case ast.Constant(value=bool(value)):
            return [(f"{value} -> {not value}", {"value": not value})]
        case ast.Constant(value=int(value)):
            return [(f"{value} -> {new}", {"value": new}) for new in (value + 1, value - 1)]
        case ast.Constant(value=float(value)):
            return [(f"{value} -> {value + 1}", {"value": value + 1})]
        case ast.Constant(value=str(value)) if value in STRINGS:
            return [(f"{value!r} -> {STRINGS[value]!r}", {"value": STRINGS[value]})]
        case ast.Name(id=name) if name in NAMES:
            return [(f"{name} -> {NAMES[name]}", {"id": NAMES[name]})]
        case ast.Attribute(attr=name) if name in NAMES:
            return [(f"{name} -> {NAMES[name]}", {"attr": NAMES[name]})]
        case ast.IfExp():
            branches = ((True, "a if c else b -> a"), (False, "a if c else b -> b"))
            return [(what, {"test": ast.Constant(first)}) for first, what in branches]
    return _operator_changes(node)


def _operator_changes(node: ast.expr) -> list[tuple[str, dict[str, Any]]]:
    match node:
        case ast.BinOp(op=op) if type(op) in BINARY:
            new: Any = BINARY[type(op)]
            return [(f"{type(op).__name__} -> {new.__name__}", {"op": new()})]
        case ast.Compare(ops=[op]) if type(op) in COMPARISONS:
            new = COMPARISONS[type(op)]
            return [(f"{type(op).__name__} -> {new.__name__}", {"ops": [new()]})]
        case ast.UnaryOp(op=ast.USub()):
            return [("-x -> x", {"op": ast.UAdd()})]
        case ast.UnaryOp(op=ast.Not()):
            return [("not x -> x", {"op": ast.UAdd()})]
        case ast.BoolOp(op=ast.And()):
            return [("and -> or", {"op": ast.Or()})]
        case ast.BoolOp():
            return [("or -> and", {"op": ast.And()})]
    return []


class _Changed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from compiled code instead of its file."""

    def __init__(self, name: str, code: CodeType) -> None:
        self.name = name
        self.code = code

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, origin=self.code.co_filename)

    def exec_module(self, module: ModuleType) -> None:
        exec(self.code, module.__dict__)


def noticed(mutant: Mutant | None, tests: list[str], module: str) -> bool:
    """True where a test fails, or the process dies or hangs."""
    child = os.fork()
    if child == 0:
        _run_tests(mutant, tests, module)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0


def _run_tests(mutant: Mutant | None, tests: list[str], module: str) -> None:
    signal.alarm(SECONDS)
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
        if mutant is not None:
            with contextlib.suppress(SyntaxError):
                code = compile(mutant.tree, str(mutant.path), "exec")
                sys.meta_path.insert(0, _Changed(module, code))
        arguments = ["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0", *tests]
        status = pytest.main(arguments)
    os._exit(int(status))


def tests_for(path: Path) -> list[str]:
    """Test files, those that are named after the module first.

    Only the neural-art tests run neural-art code; the other modules serve every profile.
    """
    folders = (ROOT / "tests" / "numerics", ROOT / "tests" / "ops")
    files = [f for folder in folders for f in sorted(folder.glob("test_*.py"))]
    own = [f for f in files if f.stem.startswith(f"test_{path.stem}")]
    prefix = "neural_art" if path.stem.startswith("neural_art") else path.stem
    family = [f for f in files if f not in own and prefix in f.stem]
    rest = [f for f in files if f not in own and f not in family]
    return [str(f) for f in own + family + ([] if path.stem.startswith("neural_art") else rest)]


def _report(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def check(path: Path) -> int:
    """Number of surviving mutants of one file."""
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    tests = tests_for(path)
    if noticed(None, tests, module):
        raise SystemExit("the tests fail without any change: python -m pytest tests/numerics")
    survivors = total = 0
    for mutant in mutants(path):
        if mutant.known_equivalent:
            continue
        total += 1
        if not noticed(mutant, tests, module):
            survivors += 1
            _report(f"{path.name}:{mutant.line}: {mutant.what}    {mutant.source_line}")
    _report(f"{path.name}: {survivors} of {total} mutants survive")
    return survivors


def main(arguments: list[str]) -> int:
    named = [Path(a).resolve() for a in arguments if not a.startswith("-")]
    paths = named or sorted((ROOT / "npusim" / "numerics").glob("*.py"))
    if "--list" in arguments:
        for path in paths:
            for mutant in mutants(path):
                _report(f"{path.name}:{mutant.line}: {mutant.what}    {mutant.source_line}")
        return 0
    os.chdir(ROOT)
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = scratch
        # What every child needs and no mutant changes is imported once, here.
        for name in ("numpy", "onnx"):
            importlib.import_module(name)
        return 1 if sum(check(path) for path in paths) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
