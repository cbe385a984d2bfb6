"""Mutants: every constant, operator, comparison, rounding and saturation of a file, changed once.

Error messages, docstrings and annotations are left alone; so are arguments that only check.
"""

from __future__ import annotations

import ast
import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

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
    "shift_floor": "shift_half_up", "shift_half_up": "shift_half_away",
    "shift_half_away": "shift_half_up", "shift_half_even": "shift_half_away",
    "shift_left": "shift_floor", "left_shift": "right_shift", "right_shift": "left_shift",
    "round_half_even": "round_half_away", "round_half_away": "round_half_even", "floor": "ceil",
    "rint": "floor", "min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum",
    "fmin": "fmax", "fmax": "fmin", "all": "any", "any": "all", "float32": "float64",
    "float64": "float32", "multiply_double_rounding": "multiply_single_rounding",
    "multiply_single_rounding": "multiply_double_rounding",
    "multiply_single_rounding_away": "multiply_single_rounding", "exp": "expm1", "log": "log1p",
    "erf": "erfc", "erfc": "erf",
}  # fmt: skip
"""Functions and types, and what takes their place. Both exist in the same module."""

LEFT_OUT = {
    "saturate", "saturate16", "_saturate16", "clip", "abs", "sign", "copysign", "floor", "rint",
    "min", "max", "minimum", "maximum", "fmin", "fmax",
}  # fmt: skip
"""Functions that are left out: an argument takes the place of the call."""

STRINGS = {
    "half_away": "half_up", "half_up": "half_away", "half_even": "half_away", "floor": "half_up",
    "one_step": "two_step", "two_step": "one_step", "auto": "none", "double": "single",
    "single": "double", "away": "single", "refuse": "off", "off": "refuse",
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change of one file.

    scope: qualified name of the function that is changed, "" outside of all. source: the line.
    what: says the change; " #2" and on where a line has several of the same kind. index,
    attributes: which place of the file is changed, and to what.
    """

    path: Path
    line: int
    scope: str
    source: str
    what: str
    index: int
    attributes: dict[str, Any]

    def code(self) -> CodeType:
        """The changed module."""
        tree = ast.parse(self.path.read_text("utf-8"))
        _, node = next(itertools.islice(_places(tree), self.index, None))
        for name, value in self.attributes.items():
            setattr(node, name, value)
        return compile(ast.fix_missing_locations(tree), str(self.path), "exec")

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What stays the same while other lines move."""
        return self.path.name, self.scope, self.source, self.what

    def __str__(self) -> str:
        return f"{self.path.name}:{self.line}: {self.what}    {self.source}"


def mutants(path: Path) -> Iterator[Mutant]:
    """Every mutant of a file, in the order of its lines."""
    text = path.read_text("utf-8")
    lines, original = text.splitlines(), ast.parse(text)
    seen: Counter[tuple[str, str, str]] = Counter()
    for index, (scope, place) in enumerate(_places(original)):
        source = lines[place.lineno - 1].strip()
        for change, attributes in _changes(place):
            seen[scope, source, change] += 1
            count = seen[scope, source, change]
            what = change if count == 1 else f"{change} #{count}"
            yield Mutant(path, place.lineno, scope, source, what, index, attributes)


Place = ast.expr | ast.AugAssign


def _places(tree: ast.AST, scope: str = "", inside: bool = False) -> Iterator[tuple[str, Place]]:
    """(scope, node) of what computes; a scope is the outermost function, with its classes."""
    for field, value in ast.iter_fields(tree):
        if field in {"annotation", "returns", "decorator_list", "type_params"}:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _only_tells(child):
                if isinstance(child, Place) and _changes(child):
                    yield scope if inside else "", child
                yield from _places(child, *_scope_below(tree, field, child, scope, inside))


def _scope_below(
    tree: ast.AST, field: str, child: ast.AST, scope: str, inside: bool
) -> tuple[str, bool]:
    if isinstance(tree, ast.FunctionDef) and not inside:
        inside = field == "body"
    if isinstance(child, ast.FunctionDef | ast.ClassDef) and not inside:
        scope = f"{scope}.{child.name}" if scope else child.name
    return scope, inside


def _only_tells(node: ast.AST) -> bool:
    """Errors, asserts, docstrings, array types, zip's check of lengths that are always equal."""
    if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "npt.NDArray":
        return True
    if isinstance(node, ast.keyword):
        return node.arg == "strict"
    docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return docstring or isinstance(node, ast.Raise | ast.Assert)


def _changes(node: Place) -> list[tuple[str, dict[str, Any]]]:
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
        case ast.Call(args=[_, *_]):
            return _left_out(node)
        case ast.IfExp():
            branches = ((True, "a if c else b -> a"), (False, "a if c else b -> b"))
            return [(what, {"test": ast.Constant(first)}) for first, what in branches]
    return _operator_changes(node)


def _left_out(call: ast.Call) -> list[tuple[str, dict[str, Any]]]:
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name) if name in LEFT_OUT:
            pass
        case _:
            return []
    if name == "saturate16":
        return [(f"no {name}", {"func": _function("lambda a: Stream(a, 0)")})]
    changes = [(f"{name}(a, ...) -> a", {"func": _function("lambda a, *_: a")})]
    if len(call.args) == 2 and name.removeprefix("f").startswith(("min", "max")):
        changes.append((f"{name}(a, b) -> b", {"func": _function("lambda a, b: b")}))
    return changes


def _function(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _operator_changes(node: Place) -> list[tuple[str, dict[str, Any]]]:
    match node:
        case ast.BinOp(op=op) | ast.AugAssign(op=op) if type(op) in BINARY:
            new: Any = BINARY[type(op)]
            return [(f"{type(op).__name__} -> {new.__name__}", {"op": new()})]
        case ast.Compare(ops=[op]) if type(op) in COMPARISONS:
            new = COMPARISONS[type(op)]
            return [(f"{type(op).__name__} -> {new.__name__}", {"ops": [new()]})]
        case ast.UnaryOp(op=ast.USub()):
            return [("-x -> x", {"op": ast.UAdd()})]
        case ast.UnaryOp(op=ast.Not()):
            # "+x" of a bool is not one, but is as true as x.
            return [("not x -> x", {"op": ast.UAdd()})]
        case ast.BoolOp(op=ast.And()):
            return [("and -> or", {"op": ast.Or()})]
        case ast.BoolOp():
            return [("or -> and", {"op": ast.And()})]
    return []
