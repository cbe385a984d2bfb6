"""MLPerf Tiny's ResNet8 against onnxruntime: unit by unit exact, as a whole nearly so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import oracle
import pytest
from PIL import Image
from whole_network import codes_of_onnxruntime

import npusim
from npusim.ir import Array, Graph, Site


@pytest.fixture(scope="module")
def path(shared: Path) -> Path:
    return shared / "models" / "mlperf_tiny" / "resnet.onnx"


@pytest.fixture(scope="module")
def graph(path: Path) -> Graph:
    return npusim.load(path)


@pytest.fixture(scope="module")
def images(shared: Path) -> Array:
    """float32 [100, 32, 32, 3], 0..255: ten of each class."""
    folders = sorted((shared / "data" / "cifar10" / "test").iterdir())
    files = [f for folder in folders for f in sorted(folder.iterdir())[:10]]
    return np.stack([np.asarray(Image.open(f).convert("RGB"), np.float32) for f in files])


@pytest.fixture(scope="module", params=["numpy", "fast"])
def tensors(request: pytest.FixtureRequest, graph: Graph, images: Array) -> dict[str, Array]:
    """Every tensor of the network for a few images."""
    few = images[::20]
    program = npusim.compile(graph, "onnxruntime", request.param)
    return {graph.inputs[0].name: few, **program.run({graph.inputs[0].name: few}, taps=("*",))}


def has_unit_model(site: Site) -> bool:
    return site.node.op in oracle.WRITERS


def test_every_unit_fed_our_own_integers_equals_onnxruntime(
    graph: Graph, tensors: dict[str, Array]
) -> None:
    checked = []
    for site in filter(has_unit_model, graph.sites()):
        feeds = {n: tensors[n] for n in site.node.inputs if n in tensors}
        np.testing.assert_array_equal(
            tensors[site.output.name], oracle.expected(site, feeds), err_msg=site.node.name
        )
        checked.append(site.node.op)
    assert (checked.count("conv"), checked.count("add"), checked.count("gemm")) == (9, 3, 1)


@pytest.mark.parametrize("optimized", [False, True])
def test_whole_network_differs_little_and_never_in_the_class(
    path: Path, graph: Graph, images: Array, optimized: bool
) -> None:
    """QDQ graphs mean other arithmetic to onnxruntime, see docs/numerics.md."""
    first = next(n.outputs[0] for n in graph.nodes if n.op == "quantize")
    logits = next(n.outputs[0] for n in graph.nodes if n.op == "gemm")
    ours = npusim.compile(graph, "onnxruntime").run({graph.inputs[0].name: images}, (first, logits))
    names = [logits] if optimized else [first, logits]  # more outputs would change the fusion
    theirs = dict(zip(names, codes_of_onnxruntime(path, names, images, optimized), strict=True))
    if not optimized:
        np.testing.assert_array_equal(ours[first], theirs[first].reshape(ours[first].shape))
    difference = ours[logits].astype(int) - theirs[logits]
    assert np.abs(difference).max() <= 1
    assert np.count_nonzero(difference) < 0.05 * difference.size
    np.testing.assert_array_equal(ours[logits].argmax(1), theirs[logits].argmax(1))
