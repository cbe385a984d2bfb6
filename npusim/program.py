"""A graph bound to a profile: immutable, shareable between threads, weights outside."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np

from npusim.counters import LayerCounts, Statistics, layer_counts
from npusim.errors import BadShape, UsageError
from npusim.interpreter import ReferenceWorker
from npusim.ir import Array, Graph, Site, Value
from npusim.numerics.lowered import Lowered
from npusim.numerics.profile import DEFAULT_PROFILE, Profile, load_profile
from npusim.ops.base import rule_for, spec_of
from npusim.weights import WeightStore

if TYPE_CHECKING:
    from npusim.kernels.plan import Plan

ENGINES = ("fast", "numpy")

# Activations of one call of a worker; larger batches are run in parts of this size.
_ARENA_BYTES = 32 << 20


class AnyWorker(Protocol):
    """What both engines offer a thread."""

    batch: int

    def load(self, store: WeightStore) -> None: ...

    def set_weight(self, name: str, codes: Array) -> None: ...

    def forward(self, arrays: tuple[Array, ...]) -> tuple[Array, ...]: ...

    def value(self, name: str) -> Array: ...

    def saturations(self) -> dict[str, int]: ...


class Program:
    """Runs a graph with the integers of a profile. Made by ``npusim.compile``.

    graph, profile: what was compiled. engine: "fast" (Numba) or "numpy" (the references).
    lowering: node name -> the numbers it computes with, frozen at compile.
    weights: the codes the file holds; ``run`` takes others.
    """

    def __init__(
        self, graph: Graph, profile: Profile, engine: str, lowering: Mapping[str, Lowered]
    ) -> None:
        self.graph = graph
        self.profile = profile
        self.engine = engine
        self.lowering = lowering
        self.weights = WeightStore.of(graph)

    def __repr__(self) -> str:
        return (
            f"<Program of {self.graph.path or self.graph.name}: {len(self.graph.nodes)} operators, "
            f"{self.weights.parameters():,} parameters, profile {self.profile.name}, "
            f"engine {self.engine}>"
        )

    @cached_property
    def _plan(self) -> Plan:
        _require_compiler()
        from npusim.kernels.plan import build_plan

        return build_plan(self.graph, self.profile, self.lowering)

    def worker(self, batch: int) -> AnyWorker:
        """Memory for one thread and up to ``batch`` images, without weights yet.

        Call ``load`` on it before ``forward``.
        """
        if self.engine == "numpy":
            return ReferenceWorker(self.graph, self.profile, self.lowering, batch)
        from npusim.kernels.worker import Worker

        return Worker(self._plan, batch)

    def run(
        self,
        feeds: Mapping[str, Array],
        taps: Iterable[str] = (),
        threads: int = 1,
        weights: WeightStore | None = None,
        statistics: Statistics | None = None,
    ) -> dict[str, Array]:
        """Outputs of the network, and every tensor that a glob in ``taps`` names.

        Args:
            feeds: input name -> array in the model's own dtype, any number of images.
            taps: shell patterns over names of tensors, and of nodes for the tensors that they
                compute; one pattern alone may be a text.
            threads: images are shared out over this many threads; bits do not depend on it.
            weights: other codes than the file's.
            statistics: counts what saturates in every layer.

        Returns:
            name -> array in the model's own dtype and order of axes.

        Raises:
            BadShape: a feed is missing, unknown, or has another dtype or shape.
            UsageError: feeds are no mapping, or a tap names neither a tensor nor a node.
        """
        arrays, images = self._check_feeds(feeds)
        names = [v.name for v in self.graph.outputs] + self._tapped(taps)
        if threads < 1:
            raise UsageError("at least one thread is needed", where="threads", got=threads)
        parts = self._parts(images, threads)

        store = weights or self.weights

        def run_share(share: list[slice]) -> list[tuple[dict[str, Array], dict[str, LayerCounts]]]:
            worker = self.worker(max(s.stop - s.start for s in share))
            worker.load(store)
            return [
                (
                    self._run_part(worker, arrays, part, names),
                    {} if statistics is None else layer_counts(self, worker, store),
                )
                for part in share
            ]

        shares = [parts[i::threads] for i in range(min(threads, len(parts)))]
        if len(shares) == 1:
            done = [run_share(shares[0])]
        else:
            with ThreadPoolExecutor(len(shares)) as pool:
                done = list(pool.map(run_share, shares))
        in_order = [done[i % len(shares)][i // len(shares)] for i in range(len(parts))]
        if statistics is not None:
            for _, counts in in_order:
                statistics.add(counts)
        return {name: self._joined(name, [part[name] for part, _ in in_order]) for name in names}

    def _run_part(
        self, worker: AnyWorker, arrays: list[Array], part: slice, names: list[str]
    ) -> dict[str, Array]:
        inputs = tuple(
            a[part] if v.type.lifted else a for a, v in zip(arrays, self.graph.inputs, strict=True)
        )
        worker.forward(inputs)
        return {name: worker.value(name) for name in names}

    def _joined(self, name: str, parts: list[Array]) -> Array:
        return np.concatenate(parts) if self.graph.value(name).type.lifted else parts[0]

    def _parts(self, images: int | None, threads: int) -> list[slice]:
        """Slices of the batch that fit a worker; one that means everything if not lifted."""
        if images is None:
            return [slice(0, 1)]
        size = sum(
            value.type.per_image() * np.dtype(value.type.dtype).itemsize
            for value in self.graph.values.values()
            if value.type.lifted
        )
        most = max(1, min(_ARENA_BYTES // max(1, size), -(-images // threads)))
        return [slice(i, min(i + most, images)) for i in range(0, max(images, 1), most)]

    def _check_feeds(self, feeds: Mapping[str, Array]) -> tuple[list[Array], int | None]:
        names = {v.name for v in self.graph.inputs}
        if not isinstance(feeds, Mapping):
            raise UsageError(
                "a program runs on arrays by input name",
                where="feeds",
                got=type(feeds).__name__,
                wanted="a mapping",
                hint=f"Write program.run({{{self.graph.inputs[0].name!r}: array}}).",
            )
        for name in feeds:
            if name not in names:
                raise BadShape(
                    "the model has no input of this name", where=name, wanted=_listed(names)
                )
        arrays, images = [], None
        for value in self.graph.inputs:
            if value.name not in feeds:
                raise BadShape("no array was given for this input", where=value.name)
            array = np.asarray(feeds[value.name])
            _check_array(array, value)
            if value.type.lifted:
                if images not in (None, array.shape[0]):
                    raise BadShape(
                        "inputs have different numbers of images",
                        where=value.name,
                        got=array.shape[0],
                        wanted=images,
                    )
                images = array.shape[0]
            arrays.append(array)
        return arrays, images

    def _tapped(self, taps: Iterable[str]) -> list[str]:
        outputs = {v.name for v in self.graph.outputs}
        found: list[str] = []
        for pattern in (taps,) if isinstance(taps, str) else taps:
            found += [n for n in self._matching(pattern) if n not in outputs and n not in found]
        return found

    def _matching(self, pattern: str) -> list[str]:
        """Activations whose own name, or whose node's, matches; in order of execution."""
        names = {v.name: {v.name} for v in self.graph.inputs}
        names |= {node.outputs[0]: {node.outputs[0], node.name} for node in self.graph.nodes}
        matches = [n for n, known in names.items() if any(fnmatchcase(k, pattern) for k in known)]
        if matches:
            return matches
        close = difflib.get_close_matches(pattern, sorted(set().union(*names.values())), 1)
        raise UsageError(
            "no tensor and no node matches this tap",
            where=pattern,
            hint=f"Did you mean {close[0]}?"
            if close
            else "`npusim inspect` shows every node and the tensor that it computes.",
        )


def compile_graph(
    graph: Graph,
    profile: str | Profile | None = None,
    engine: str = "fast",
    lowering: Mapping[str, Lowered] | None = None,
) -> Program:
    """Bind a graph to a profile.

    Args:
        graph: from ``npusim.load``.
        profile: a profile or its name; None is npusim.DEFAULT_PROFILE.
        engine: "fast" or "numpy".
        lowering: numbers frozen by an earlier compile, by node name; others are computed.

    Raises:
        UnsupportedOp: the profile cannot compute an operator.
        BadShape: a tensor's type in the file is not what the operator computes.
    """
    if engine not in ENGINES:
        raise UsageError("unknown engine", where=engine, wanted=" or ".join(ENGINES))
    chosen = profile if isinstance(profile, Profile) else load_profile(profile or DEFAULT_PROFILE)
    given = lowering or {}
    frozen = {
        site.node.name: lower_site(site, chosen, given.get(site.node.name))
        for site in graph.sites()
    }
    return Program(graph, chosen, engine, frozen)


def lower_site(site: Site, profile: Profile, given: Lowered | None = None) -> Lowered:
    """The numbers that a node computes with; ``given`` where there are some already.

    Raises what ``compile_graph`` raises for this node.
    """
    inferred = spec_of(site.node.op).infer(site)
    if inferred != site.output.type:
        raise BadShape(
            f"{site.node.op} computes another type than the model states",
            where=site.node.name,
            got=inferred,
            wanted=site.output.type,
        )
    return given or rule_for(site, profile).lower(site, profile)


def _require_compiler() -> None:
    """Raise UsageError where Numba is missing or told not to compile."""
    try:
        from numba import config
    except ImportError:
        problem = "the fast engine needs Numba, which is not installed"
    else:
        if not config.DISABLE_JIT:
            return
        problem = "the fast engine needs Numba's compiler, which NUMBA_DISABLE_JIT switches off"
    raise UsageError(problem, hint='Choose the slow one: --engine numpy, or engine="numpy".')


def _check_array(array: Array, value: Value) -> None:
    wanted = value.type
    fits = len(array.shape) == len(wanted.shape) and all(
        w is None or w == d for d, w in zip(array.shape, wanted.shape, strict=True)
    )
    if not fits or array.dtype != np.dtype(wanted.dtype):
        got = f"{array.dtype}[{','.join(map(str, array.shape))}]"
        raise BadShape(
            "the array does not fit this input", where=value.name, got=got, wanted=wanted
        )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise BadShape("the array holds NaN or infinite values", where=value.name)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
