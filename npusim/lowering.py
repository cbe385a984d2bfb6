"""Which numbers a program computes with: fresh ones, those a trained file carries, or a user's.

A trained file's metadata hold the lowering that it was trained through, since part of a lowering
may depend on the weights: computed afresh from the new weights it could differ, and with it the
integers. So the file's lowering is used unless the user asks for a fresh one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from npusim.errors import ModelError, UsageError
from npusim.files import parse_json
from npusim.ir import Graph
from npusim.numerics.lowered import Lowered, lowering_to_json
from npusim.numerics.overrides import override, read_overrides
from npusim.numerics.profile import profile_names

if TYPE_CHECKING:
    from npusim.numerics.profile import Profile
    from npusim.program import Program
    from npusim.weights import WeightStore

METADATA_KEY = "npusim.lowering"
FRESH = "fresh"


def lowering_metadata(
    profile: str, weights_crc: int, lowering: Mapping[str, Lowered] | Mapping[str, Any]
) -> dict[str, str]:
    """The entry of a trained file's metadata.

    Args:
        weights_crc: of the weights that the lowering was made from.
        lowering: by node name; also as JSON types already.
    """
    nodes = {k: v for k, v in lowering.items() if not isinstance(v, Lowered)}
    nodes |= lowering_to_json({k: v for k, v in lowering.items() if isinstance(v, Lowered)})
    frozen = {"profile": profile, "weights_crc": weights_crc, "nodes": nodes}
    return {METADATA_KEY: json.dumps(frozen, separators=(",", ":"))}


def compile_chosen(
    graph: Graph,
    profile: str | Profile | None,
    engine: str = "fast",
    choice: str | None = None,
) -> tuple[Program, str]:
    """Compiles with the lowering that the file carries, or that the user chose.

    Args:
        profile: or its name; None is the one the file was trained under, else the default.
        engine: "fast" or "numpy".
        choice: None, "fresh" to compute all numbers anew, or a JSON file of numbers to change
            (npusim.numerics.overrides).

    Returns:
        The program, and a sentence about the lowering, "" where it is simply fresh.

    Raises:
        ModelError: the file's lowering does not fit its network.
        UsageError: the user's file does not.
    """
    from npusim.program import compile_graph

    frozen = None if choice == FRESH else _frozen(graph)
    trained = frozen["profile"] if frozen else profile_of(graph)
    if frozen and profile is None and trained not in profile_names():
        raise _unfit(graph, f"is of a profile that there is none of: {trained!r}")
    fresh = compile_graph(graph, profile or trained, engine)
    lowering: Mapping[str, Lowered] = fresh.lowering
    notes = []
    if choice == FRESH and METADATA_KEY in graph.metadata:
        notes.append("the lowering that the file carries is not used")
    if frozen and frozen["profile"] != fresh.profile.name:
        notes.append(
            f"the lowering that the file carries is of profile {frozen['profile']}: unused"
        )
    elif frozen:
        lowering = _carried(graph, lowering, frozen["nodes"])
        notes.append("computing with the lowering that the file carries (--lowering fresh: anew)")
    if choice not in (None, FRESH):
        lowering = _changed_by(choice, lowering)
        notes.append(f"numbers of the lowering changed by {choice}")
    if lowering is fresh.lowering:
        return fresh, "; ".join(notes)
    return compile_graph(graph, fresh.profile, engine, lowering), "; ".join(notes)


def profile_of(graph: Graph) -> str | None:
    """The profile that the file was trained under; None where it names none that exists."""
    try:
        name = parse_json(graph.metadata[METADATA_KEY])["profile"]
    except (ValueError, KeyError, TypeError):
        return None
    return name if name in profile_names() else None


def recompiled_differences(program: Program, store: WeightStore) -> dict[str, tuple[str, ...]]:
    """Which numbers would change if the network were compiled anew with these weights.

    Training runs under the lowering of the weights it began with. Compiling the trained file may
    give other numbers, and with them other integers.

    Args:
        program: what the weights were trained through; its lowering is compared.
        store: the trained weights.

    Returns:
        Node -> names of the numbers that differ, as ``inspect --show-lowering`` names them
        ("shift", "multiplier", "channels"; in an inner step "rescale.shift"); nodes whose numbers
        stay are left out.
    """
    fresh = recompiled(program, store).lowering
    found = {
        node: tuple(_differing(numbers.to_json(), fresh[node].to_json()))
        for node, numbers in program.lowering.items()
    }
    return {node: fields for node, fields in found.items() if fields}


def recompiled(program: Program, store: WeightStore) -> Program:
    """The program with these weights for its own, and the lowering that they give."""
    from npusim.program import compile_graph

    codes = {tensor.name: store.onnx(tensor.name) for tensor in store.tensors}
    graph = program.graph.with_(initializers={**program.graph.initializers, **codes})
    return compile_graph(graph, program.profile, program.engine)


def _differing(old: Any, new: Any, name: str = "") -> Iterator[str]:
    """Names of the fields in which the JSON forms of two lowerings differ."""
    if old == new:
        return
    steps = isinstance(old, dict) and isinstance(new, dict) and "values" not in old
    if not steps or old.keys() != new.keys():
        yield name or "type"
        return
    for key in old:
        yield from _differing(old[key], new[key], f"{name}.{key}" if name else key)


def _frozen(graph: Graph) -> dict[str, Any] | None:
    """The file's entry: {"profile", "weights_crc", "nodes"}."""
    text = graph.metadata.get(METADATA_KEY)
    if text is None:
        return None
    try:
        entry = parse_json(text)
        fits = isinstance(entry["profile"], str) and all(
            isinstance(numbers, dict) for numbers in entry["nodes"].values()
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        fits = False
    if not fits:
        raise _unfit(graph, "is damaged")
    return dict(entry)


def _changed_by(path: str, lowering: Mapping[str, Lowered]) -> dict[str, Lowered]:
    """``lowering`` with the changes of a user's file, which errors name."""
    changes = read_overrides(path)
    try:
        return override(lowering, changes)
    except UsageError as error:
        raise UsageError(
            error.problem,
            where=f"{path}: {error.where}",
            got=error.got,
            wanted=error.wanted,
            hint=error.hint,
        ) from None


def _carried(
    graph: Graph, fresh: Mapping[str, Lowered], nodes: Mapping[str, Mapping[str, Any]]
) -> dict[str, Lowered]:
    try:
        return override(fresh, nodes)
    except UsageError as error:
        raise _unfit(graph, f"does not fit its network: {error}") from error


def _unfit(graph: Graph, problem: str) -> ModelError:
    return ModelError(
        f"the lowering in the file's metadata ({METADATA_KEY}) {problem}",
        where=graph.path or graph.name,
        hint="Compute it anew with --lowering fresh.",
    )
