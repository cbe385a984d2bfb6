"""How a whole QDQ network differs from onnxruntime: python tests/ops/whole_network.py MODEL DATA.

For every image of DATA's test split: the integer tensor before the last DequantizeLinear under
profile onnxruntime, beside what onnxruntime computes with optimization off and on.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

import npusim
from npusim.ir import Array
from npusim.models import make_inputs, open_dataset


def codes_of_onnxruntime(
    path: Path, names: list[str], images: Array, optimized: bool
) -> list[Array]:
    """int8 tensors of the whole QDQ network as onnxruntime runs it, image by image."""
    model = onnx.load(path)
    for name in names:
        info = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.INT8, None)
        model.graph.output.append(info)
    options = onnxruntime.SessionOptions()
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = (
        levels.ORT_ENABLE_ALL if optimized else levels.ORT_DISABLE_ALL
    )
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    runs = [session.run(names, {session.get_inputs()[0].name: x[None]}) for x in images]
    return [np.concatenate(outputs) for outputs in zip(*runs, strict=True)]


def main(model: str, data: str) -> None:
    graph = npusim.load(model)
    logits = [n.inputs[0] for n in graph.nodes if n.op == "dequantize"][-1]
    images, _ = make_inputs(graph, open_dataset(data, prefer="test")).arrays()
    ours = npusim.compile(graph, "onnxruntime").run({graph.inputs[0].name: images}, [logits])[
        logits
    ]
    for optimized in (False, True):
        (theirs,) = codes_of_onnxruntime(Path(model), [logits], images, optimized)
        difference = ours.astype(int) - theirs
        classes = np.count_nonzero(ours.argmax(1) != theirs.argmax(1))
        print(  # noqa: T201
            f"optimization {'on' if optimized else 'off'}: {np.count_nonzero(difference)} of "
            f"{difference.size} codes differ, by at most {np.abs(difference).max()}; "
            f"{classes} of {len(images)} classes"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
