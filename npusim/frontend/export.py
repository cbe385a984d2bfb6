"""Write trained codes back into the ONNX file that a graph was loaded from.

The file keeps its nodes, names and metadata; only initializers whose codes changed get other bytes,
in their own dtype and shape: codes where the file holds codes, float values exactly on the grid
where it holds floats. What was written is read again and compared code by code; where the file
cannot hold the result (a folded BatchNormalization, one weight under two scales), a new file with
QuantizeLinear and DequantizeLinear is written instead.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from npusim.errors import BadShape, ModelError
from npusim.files import replacing
from npusim.frontend.external import embed, is_external
from npusim.frontend.load import finished
from npusim.frontend.onnx import parse, tensors_of, to_graph
from npusim.frontend.qdq_writer import to_model
from npusim.frontend.tensors import to_array
from npusim.ir import Array, Graph
from npusim.passes.qdq import dequantized
from npusim.weights import WeightStore

DIGITS = 12
"""Of the hash in a data file's name."""


@dataclass(frozen=True, slots=True)
class Exported:
    """rewritten: the same file with other codes (True), or a new QDQ file (False).

    message: what was written, and why it is a new file where it is one.
    """

    rewritten: bool
    message: str


def export(
    graph: Graph,
    store: WeightStore | Mapping[str, Array],
    path: str | os.PathLike[str],
    metadata: Mapping[str, str] | None = None,
) -> Exported:
    """Write the network with these weights to ``path``.

    Args:
        graph: as npusim.load returned it; its file is read again.
        store: the weights, or arrays by initializer name in the file's shape.
        path: the file to write; it may be the graph's own. External data go into a file beside
            it, NAME.<hash>.data; one that an earlier export wrote there is removed at the end.
        metadata: keys to set in the file's metadata (their names begin with "npusim.").

    Raises ModelError where the graph's file is gone or has changed, BadShape where an array does
    not fit.
    """
    changed = _changes(graph, store)
    target, notes = Path(path), metadata or {}
    model, external = _embedded(Path(graph.path))
    reason = _rewrite(graph, model, changed) or _difference(graph, changed, model)
    if not reason:
        _write(_with_metadata(model, notes), target, external)
        count = f"{len(changed)} of its tensors changed" if changed else "unchanged"
        return Exported(True, f"{target.name} is the given network, {count}.")
    _write(_with_metadata(to_model(graph, changed), notes), target, frozenset())
    return Exported(
        False, f"{target.name} is a new QDQ network: the given file cannot hold {reason}."
    )


def _changes(graph: Graph, store: WeightStore | Mapping[str, Array]) -> dict[str, Array]:
    """Codes in the file's shape of the tensors that differ from the graph's."""
    if isinstance(store, WeightStore):
        arrays = {t.name: store.onnx(t.name) for t in store.tensors}
    else:
        arrays = dict(store)
    changed = {}
    for name, array in arrays.items():
        old = graph.initializers.get(name)
        if old is None or old.shape != array.shape or old.dtype != array.dtype:
            raise BadShape(
                "weights do not fit the network",
                where=name,
                got=f"{array.dtype}{list(array.shape)}",
                wanted="no such tensor" if old is None else f"{old.dtype}{list(old.shape)}",
            )
        if not np.array_equal(old, array):
            changed[name] = array
    return changed


def _embedded(file: Path) -> tuple[onnx.ModelProto, frozenset[str]]:
    """The graph's file with all data in the message, and which tensors lay outside it."""
    model = parse(file)
    outside = [t for t in model.graph.initializer if is_external(t)]
    for tensor in tensors_of(model):
        if is_external(tensor):
            embed(tensor, file.parent)
    return model, frozenset(t.name for t in outside)


def _rewrite(graph: Graph, model: onnx.ModelProto, changed: Mapping[str, Array]) -> str:
    """Put changed codes into the message; returns what it cannot hold, "" where nothing."""
    homes = {t.name: t for t in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant" and node.attribute[0].HasField("t"):
            homes[node.output[0]] = node.attribute[0].t
    before = {n.output[0]: n.input[0] for n in model.graph.node if n.op_type == "QuantizeLinear"}
    for name, codes in changed.items():
        tensor = homes.get(name if name in homes else before.get(name, ""))
        if tensor is None or tuple(tensor.dims) != codes.shape:
            return f"new values of {name}"
        _set(graph, tensor, name, codes)
    return ""


def _set(graph: Graph, tensor: onnx.TensorProto, name: str, codes: Array) -> None:
    """Give the tensor these codes, as codes or as the numbers that they stand for."""
    old = to_array(tensor)
    array = codes
    if old.dtype.kind == "f":
        qparams = graph.value(name).qparams
        assert qparams is not None
        array = dequantized(codes, qparams).astype(old.dtype)
    elif old.dtype != codes.dtype or not np.array_equal(old, graph.initializers[name]):
        raise ModelError(
            "the network's file has changed since it was loaded",
            where=graph.path,
            got=f"other values in {name}",
        )
    for field in ("float_data", "int32_data", "int64_data", "double_data", "uint64_data"):
        tensor.ClearField(field)
    tensor.raw_data = array.astype(array.dtype.newbyteorder("<")).tobytes()


def _with_metadata(model: onnx.ModelProto, metadata: Mapping[str, str]) -> onnx.ModelProto:
    kept = {p.key: p.value for p in model.metadata_props} | dict(metadata)
    del model.metadata_props[:]
    for key, value in kept.items():
        model.metadata_props.add(key=key, value=value)
    return model


def _write(model: onnx.ModelProto, path: Path, external: frozenset[str]) -> None:
    """Write the file, and the named tensors into one data file beside it.

    The data file has a name of its own for each content, so that until the model is renamed into
    its place the old model and its data stay as they were.
    """
    fresh = None
    if external:
        outside = [t for t in model.graph.initializer if t.name in external]
        digest = hashlib.sha256()
        for tensor in outside:
            digest.update(tensor.raw_data)
        data = path.with_name(f"{path.name}.{digest.hexdigest()[:DIGITS]}.data")
        fresh = None if data.exists() else data
        with replacing(data) as file:
            for tensor in outside:
                _move_out(tensor, data.name, file.tell())
                file.write(tensor.raw_data)
                tensor.ClearField("raw_data")
    try:
        with replacing(path) as file:
            file.write(model.SerializeToString())
    except BaseException:
        if fresh is not None:
            fresh.unlink(missing_ok=True)
        raise
    _remove_unused(path)


def _remove_unused(path: Path) -> None:
    """Remove data files that _write made for ``path`` and that no model beside them names.

    A copy of an older model may still name one.
    """
    own = re.compile(rf"{re.escape(path.name)}\.[0-9a-f]{{{DIGITS}}}\.data")
    with suppress(OSError):
        files = [p for p in path.parent.iterdir() if p.is_file()]
        data = [p for p in files if own.fullmatch(p.name)]
        models = [p for p in files if p.suffix == ".onnx"] if data else []
        for model in models:
            text = model.read_bytes()
            data = [p for p in data if p.name.encode() not in text]
        for unused in data:
            unused.unlink()


def _move_out(tensor: onnx.TensorProto, location: str, offset: int) -> None:
    entries = {"location": location, "offset": offset, "length": len(tensor.raw_data)}
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=str(value))


def _difference(graph: Graph, changed: Mapping[str, Array], model: onnx.ModelProto) -> str:
    """What the message, read again, does not hold as it should; "" where nothing."""
    try:
        again = finished(to_graph(model, Path(graph.path)))
    except ModelError as error:
        return f"these weights ({error})"
    for name, array in graph.initializers.items():
        wanted = changed.get(name, array)
        found = again.initializers.get(name)
        if found is None or found.dtype != wanted.dtype or not np.array_equal(found, wanted):
            return f"the codes of {name}"
        if again.value(name).qparams != graph.value(name).qparams:
            return f"the scale of {name}"
    return ""
