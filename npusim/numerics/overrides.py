"""Changing single numbers of a lowering from a JSON file.

The file is ``{node: {field: value}}``, the fields being those that ``inspect --show-lowering``
shows; a node's own JSON from there, with some numbers edited, is accepted as it is. A list changes
a tuple or an array of the same length, an object the numbers of an inner step, and for a tuple of
inner steps an object whose keys count from "0". Where the numbers of a node may be of more than one
kind (Lowered.stand_in), "type" names another one, whose fields are then given.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from npusim.errors import NpusimError, UsageError
from npusim.files import read_json
from npusim.ir import Array
from npusim.numerics.lowered import Lowered
from npusim.numerics.requant import read_only


def read_overrides(path: str | Path) -> dict[str, dict[str, Any]]:
    """The object that the file holds.

    Raises UsageError where the file is missing, is no JSON, or is no object of objects.
    """
    try:
        data = read_json(Path(path))
    except OSError as error:
        raise UsageError("the file cannot be read", where=str(path), got=error.strerror) from None
    except ValueError as error:
        raise UsageError("the file is no JSON", where=str(path), got=error) from None
    if not isinstance(data, dict) or not all(isinstance(v, dict) for v in data.values()):
        raise UsageError(
            "a lowering file holds an object of objects",
            where=str(path),
            wanted='{"node": {"field": value}}',
        )
    return data


def override(
    lowering: Mapping[str, Lowered], changes: Mapping[str, Mapping[str, Any]]
) -> dict[str, Lowered]:
    """A copy of ``lowering`` with the numbers that ``changes`` names.

    Raises UsageError for a node or a field there is none of, or a value of the wrong type, length
    or size.
    """
    changed = dict(lowering)
    for node, fields in changes.items():
        if node not in lowering:
            raise _unknown("node", node, tuple(lowering), "the lowering")
        changed[node] = _apply(lowering[node], fields, node)
    return changed


def _apply(numbers: Lowered, changes: Mapping[str, Any], where: str) -> Lowered:
    numbers = numbers.stand_in(str(changes.get("type")))
    names = tuple(f.name for f in dataclasses.fields(numbers))
    new = {}
    for name, value in changes.items():
        if name == "type" and value == type(numbers).__name__:
            continue
        if name not in names:
            raise _unknown("field", name, names, where)
        new[name] = _fitted(getattr(numbers, name), value, f"{where}.{name}")
    try:
        return numbers.changed(**new)
    except NpusimError as error:
        where = f"{where}.{error.where}" if error.where else where
        raise UsageError(
            error.problem, where=where, got=error.got, wanted=error.wanted, hint=error.hint
        ) from None


def _fitted(old: Any, value: Any, where: str) -> Any:
    """``value`` in the type that the field has now."""
    if isinstance(old, Lowered):
        return _apply(old, _typed(value, dict, where, "an object"), where)
    if isinstance(old, np.ndarray):
        return _array(old, value, where)
    if isinstance(old, tuple):
        return _items(old, value, where)
    if isinstance(old, bool):
        if not isinstance(value, bool):
            raise UsageError(
                "a value of another type", where=where, got=repr(value), wanted="true or false"
            )
        return value
    if isinstance(old, str):
        return _typed(value, str, where, "a text")
    if isinstance(old, float):
        return float(_typed(value, int | float, where, "a number"))
    return _typed(value, int, where, "a whole number")


def _items(old: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if old and isinstance(old[0], Lowered) and isinstance(value, dict):
        known = {str(i): step for i, step in enumerate(old)}
        for key in value:
            if key not in known:
                raise _unknown("step", key, tuple(known), where)
        return tuple(
            _fitted(step, value[key], f"{where}.{key}") if key in value else step
            for key, step in known.items()
        )
    items = _typed(value, list, where, "a list")
    if len(items) != len(old) and not _free_length(where):
        raise UsageError("a list of another length", where=where, got=len(items), wanted=len(old))
    patterns = [old[min(i, len(old) - 1)] for i in range(len(items))]
    return tuple(
        _fitted(pattern, item, f"{where}[{i}]")
        for i, (pattern, item) in enumerate(zip(patterns, items, strict=True))
    )


def _free_length(where: str) -> bool:
    """The split of a kernel may get more or fewer parts, and a quadratic table more rows."""
    return where.rpartition(".")[2] in {"rows", "columns", "channels"}


def _array(old: Array, value: Any, where: str) -> Array:
    values = value.get("values") if isinstance(value, dict) else value
    items = _typed(values, list, where, "a list")
    if len(items) != old.size and not _free_length(where):
        raise UsageError("a list of another length", where=where, got=len(items), wanted=old.size)
    kinds, wanted = (int, "whole numbers") if old.dtype.kind in "iu" else (int | float, "numbers")
    checked = [_typed(item, kinds, f"{where}[{i}]", wanted) for i, item in enumerate(items)]
    try:
        return read_only(checked, old.dtype)
    except OverflowError:
        raise UsageError("a number does not fit", where=where, wanted=old.dtype.name) from None


def _typed(value: Any, kind: Any, where: str, wanted: str) -> Any:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise UsageError("a value of another type", where=where, got=repr(value), wanted=wanted)
    return value


def _unknown(what: str, name: str, known: tuple[str, ...], where: str) -> UsageError:
    close = difflib.get_close_matches(name, known)
    return UsageError(
        f"no {what} of this name",
        where=where,
        got=name,
        wanted=", ".join(known) if len(known) <= 20 else None,
        hint=f"Did you mean {close[0]}?"
        if close
        else "`npusim inspect --show-lowering` lists them.",
    )
