"""An ONNX file to the raw graph: read safely, checked, sorted, with shapes inferred.

The raw graph holds the file's operators ("Conv", "com.microsoft.QGemm") with mappings for
attributes; the passes turn it into operators of the NPU. In it, and only in it, a None in a shape
is any size that is not known. A batch that the file leaves open is read as 1: the pass LiftBatch
opens it again once it has proved that images do not mix.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx

from npusim.errors import BadShape, ModelError, UnsupportedOp
from npusim.frontend import external
from npusim.frontend.opset import CONTRIB, STANDARD, since_version
from npusim.frontend.sizes import check_declared, inferred
from npusim.frontend.tensors import dtype_name, to_array
from npusim.ir import Graph, Node, TensorType, Value

MAX_BYTES = 2**31 - 1
OLDEST_OPSET = 7
Indexed = tuple[int, onnx.NodeProto]
"""A node and its place in the file."""

CONTROL_FLOW = ("If", "Loop", "Scan", "SequenceMap")

# Operators of com.microsoft that mean what the standard operator of that name means.
SAME_AS_STANDARD = ("QuantizeLinear", "DequantizeLinear")


def read(path: str | Path) -> Graph:
    """The raw graph of an ONNX file.

    Raises ModelError (or a subclass) that names the file, node or tensor for anything that cannot
    be read; see the module's head for what the graph holds.
    """
    file = Path(path)
    return to_graph(read_model(file), file)


def read_model(file: Path) -> onnx.ModelProto:
    """The file as a message: parsed, external data embedded, checked; nothing is converted."""
    model = parse(file)
    _check_header(model, file)
    for tensor in tensors_of(model):
        if external.is_external(tensor):
            external.embed(tensor, file.parent)
    _check_names(model.graph, file)
    return model


def parse(file: Path) -> onnx.ModelProto:
    """The message in the file, external data left where they are."""
    try:
        size = file.stat().st_size
        if not file.is_file():
            raise ModelError("not a regular file", where=str(file))
        if size > MAX_BYTES:
            raise ModelError(
                "file is larger than an ONNX message may be",
                where=str(file),
                got=f"{size} bytes",
                wanted="at most 2 GB",
                hint="Save the weights as external data.",
            )
        data = file.read_bytes()
    except OSError as error:
        raise ModelError("cannot read the file", where=str(file), got=error.strerror) from None
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except Exception as error:  # protobuf's exception type depends on its back end
        raise ModelError(
            "not an ONNX model, or a damaged one", where=str(file), got=error
        ) from None
    if not _readable(model):
        raise ModelError("a text in the file is not UTF-8: it is damaged", where=str(file))
    return model


def _readable(message: Any) -> bool:
    """Whether every text is one; protobuf hands out damaged ones as bytes."""
    for field, value in message.ListFields():
        single = isinstance(value, (str, bytes)) or hasattr(value, "ListFields")
        values = [value] if single else value
        if field.type == field.TYPE_STRING and not all(isinstance(v, str) for v in values):
            return False
        if field.type == field.TYPE_MESSAGE and not all(_readable(v) for v in values):
            return False
    return True


def tensors_of(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Initializers and the tensors in attributes, in the file's order."""
    yield from model.graph.initializer
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors


def _check_header(model: onnx.ModelProto, file: Path) -> None:
    if not model.HasField("graph") or not model.graph.node:
        raise ModelError("the file holds no ONNX graph", where=str(file))
    opset = opsets_of(model).get("")
    newest = onnx.defs.onnx_opset_version()
    if opset is None or not OLDEST_OPSET <= opset <= newest:
        raise UnsupportedOp(
            "ONNX opset is not supported",
            where=str(file),
            got="none" if opset is None else opset,
            wanted=f"{OLDEST_OPSET} to {newest}",
            hint="Export the network again, for instance with opset 17.",
        )
    if model.graph.sparse_initializer:
        raise ModelError("sparse initializers are not supported", where=str(file))


def opsets_of(model: onnx.ModelProto) -> dict[str, int]:
    """Domain -> version; the standard domain is ""."""
    return {_domain(o.domain): o.version for o in model.opset_import}


def _domain(domain: str) -> str:
    return "" if domain in STANDARD else domain


def _check_nodes(nodes: list[Indexed], opsets: Mapping[str, int]) -> None:
    for index, node in nodes:
        name, domain = node_name(node, index), _domain(node.domain)
        if node.op_type in CONTROL_FLOW and not domain:
            raise UnsupportedOp(
                f"operator {node.op_type} is control flow, which an NPU does not have",
                where=name,
                hint="Export the network without it, or simplify it first (onnxsim).",
            )
        known = domain == CONTRIB or since_version(node.op_type, opsets[""])
        if domain not in ("", CONTRIB) or not known:
            version = opsets.get(domain, "none")
            raise UnsupportedOp(
                f"unknown operator {node.op_type} of domain {domain or 'ai.onnx'}"
                f" (opset {version})",
                where=name,
                hint="`npusim ops` lists the operators that can be run.",
            )
        if domain == CONTRIB and node.op_type in SAME_AS_STANDARD:
            _check_operands(node, name)


def _check_operands(node: onnx.NodeProto, name: str) -> None:
    """Of com.microsoft's QuantizeLinear and DequantizeLinear, which onnx.checker does not know."""
    given = len(node.input)
    if not 2 <= given <= 3 or not all(node.input[:2]) or len(node.output) != 1:
        raise BadShape(
            f"{node.op_type} has a wrong number of inputs or outputs",
            where=name,
            got=f"{given} and {len(node.output)}",
            wanted="a tensor, a scale and a zero point, and one output",
        )


def _check_names(graph: onnx.GraphProto, file: Path) -> None:
    for what, infos in (("input", graph.input), ("output", graph.output)):
        for index, info in enumerate(infos):
            if not info.name:
                raise ModelError(f"{what} {index} of the graph has no name", where=str(file))
    initializers = {t.name for t in graph.initializer}
    made = Counter(o for n in graph.node for o in n.output if o)
    made.update(t.name for t in graph.initializer)
    made.update(v.name for v in graph.input if v.name not in initializers)
    for name, count in made.items():
        if count > 1:
            raise ModelError(
                "several tensors have this name", where=name, got=count, wanted="unique names"
            )
    if not graph.output:
        raise ModelError("the graph has no output", where=str(file))
    for name in (v.name for v in graph.output):
        if name not in made:
            raise ModelError("output that nothing computes", where=name)


def node_name(node: onnx.NodeProto, index: int) -> str:
    """The node's name, or "<Op>_<index>" where it has none."""
    return str(node.name) or f"{node.op_type}_{index}"


def to_graph(model: onnx.ModelProto, file: Path) -> Graph:
    """The raw graph of a message that holds all its data; ``file`` is where it came from."""
    check_declared(model)
    initializers = {t.name: to_array(t) for t in model.graph.initializer}
    inputs = tuple(
        Value(v.name, _type_of(v)) for v in model.graph.input if v.name not in initializers
    )
    known = {v.name for v in inputs} | set(initializers)
    order = _needed(_sorted(model.graph, known), {v.name for v in model.graph.output})
    _check_nodes(order, opsets_of(model))
    values = _inferred(model, order, file)
    values.update({v.name: v for v in inputs})
    for name, array in initializers.items():
        values[name] = Value(name, TensorType(array.dtype.name, array.shape))
    outputs = tuple(values.get(v.name) or Value(v.name, _type_of(v)) for v in model.graph.output)
    return Graph(
        name=model.graph.name,
        inputs=inputs,
        outputs=outputs,
        nodes=tuple(_nodes(order)),
        values=values,
        initializers=initializers,
        metadata={p.key: p.value for p in model.metadata_props},
        opsets=opsets_of(model),
        path=str(file),
    ).pruned()


def _type_of(info: onnx.ValueInfoProto) -> TensorType:
    """The declared type; an open batch (the first axis) is read as 1, other open sizes as None."""
    if not info.type.HasField("tensor_type"):
        raise ModelError("only tensors are supported", where=info.name)
    tensor = info.type.tensor_type
    dtype = dtype_name(tensor.elem_type, info.name)
    if not tensor.HasField("shape"):
        return TensorType(dtype, (None,))
    sizes = [d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim]
    if any(d is not None and d < 0 for d in sizes):
        raise ModelError("negative size", where=info.name, got=sizes)
    if sizes and not sizes[0]:
        sizes[0] = 1
    return TensorType(dtype, tuple(sizes))


def _nodes(order: list[Indexed]) -> list[Node]:
    used: set[str] = set()
    nodes = []
    for index, proto in order:
        name = wish = node_name(proto, index)
        while name in used:
            name = f"{wish}_{index}" if name == wish else name + "_"
        used.add(name)
        domain = _domain(proto.domain)
        same = not domain or (domain == CONTRIB and proto.op_type in SAME_AS_STANDARD)
        nodes.append(
            Node(
                op=proto.op_type if same else f"{domain}.{proto.op_type}",
                name=name,
                inputs=tuple(proto.input),
                outputs=tuple(proto.output),
                attrs={a.name: _attribute(a, name) for a in proto.attribute},
                origin=(name,),
            )
        )
    return nodes


def _attribute(proto: onnx.AttributeProto, node: str) -> Any:
    kind = proto.type
    if kind == onnx.AttributeProto.TENSOR:
        return to_array(proto.t)
    if kind == onnx.AttributeProto.INTS:
        return tuple(proto.ints)
    if kind == onnx.AttributeProto.FLOATS:
        return tuple(proto.floats)
    if kind == onnx.AttributeProto.STRING:
        return proto.s.decode("utf-8", "replace")
    if kind == onnx.AttributeProto.INT:
        return int(proto.i)
    if kind == onnx.AttributeProto.FLOAT:
        return float(proto.f)
    raise UnsupportedOp(f"attribute {proto.name} has a type that is not supported", where=node)


def _sorted(graph: onnx.GraphProto, known: set[str]) -> list[Indexed]:
    """Nodes in execution order, as close to the file's as that allows, with their index there."""
    done = known | {""}
    waiting = list(enumerate(graph.node))
    ordered: list[Indexed] = []
    while waiting:
        later = []
        for index, node in waiting:
            if done.issuperset(node.input):
                ordered.append((index, node))
                done.update(node.output)
            else:
                later.append((index, node))
        if len(later) == len(waiting):
            index, node = later[0]
            raise ModelError(
                "input that nothing before this node computes (missing, or a cycle)",
                where=node_name(node, index),
                got=next(i for i in node.input if i not in done),
            )
        waiting = later
    return ordered


def _needed(order: list[Indexed], wanted: set[str]) -> list[Indexed]:
    """Without the nodes that no output depends on."""
    kept = []
    for index, node in reversed(order):
        if wanted.intersection(node.output):
            kept.append((index, node))
            wanted.update(node.input)
    return kept[::-1]


def _inferred(model: onnx.ModelProto, order: list[Indexed], file: Path) -> dict[str, Value]:
    """Types of the tensors between, as far as the onnx package can tell."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.node[:]
    copy.graph.node.extend(node for _, node in order)
    _check(copy, file)
    del copy.graph.value_info[:]
    for info in copy.graph.input:
        dims = info.type.tensor_type.shape.dim
        if dims and not dims[0].dim_value:
            dims[0].dim_value = 1
    for info in copy.graph.output:
        info.type.tensor_type.ClearField("shape")
    try:
        copy = inferred(copy)
    except Exception as error:  # C++ errors of several kinds; their first line says enough
        raise _refusal(file, error) from None
    return {
        v.name: Value(v.name, _type_of(v))
        for v in (*copy.graph.value_info, *copy.graph.output)
        if v.type.HasField("tensor_type") and v.type.tensor_type.elem_type
        if v.type.tensor_type.HasField("shape")
    }


def _check(model: onnx.ModelProto, file: Path) -> None:
    try:
        onnx.checker.check_model(model)
    except Exception as error:
        raise _refusal(file, error) from None


def _refusal(file: Path, error: Exception) -> ModelError:
    reason = str(error).strip().split("\n")[0]
    return ModelError(f"the onnx package refuses the model: {reason}", where=str(file))
