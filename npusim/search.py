"""Which change of the arithmetic makes a program equal to what something else computed.

A *setting* changes one switch of a profile, in one layer or in the whole network, or the profile
itself. Every setting is tried alone; only where none explains the dump are pairs tried. Settings
that give the same numbers are one explanation: from outputs alone nobody can tell them apart.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from npusim.compare import compare
from npusim.errors import NpusimError
from npusim.ir import Graph
from npusim.numerics.lowered import Lowered, lowering_to_json
from npusim.numerics.neural_art_epilogue import Convolution
from npusim.numerics.profile import Profile, load_profile, profile_names
from npusim.ops.base import rule_for
from npusim.program import Program, compile_graph

if TYPE_CHECKING:
    from npusim.dumps import Dump

SCHEMA_VERSION = 1

NETWORK = "network"
"""Where a setting holds everywhere."""

WHOLE = 10**6
"""More rows, columns or channels than any kernel has."""

SHIFTS = (-2, -1, 1, 2)
"""Distances of a layer's shift from the one it has."""

SCREEN = 2
"""Images that a setting is tried on before all of them."""

MOST_PAIRS = 2000

SWITCHES: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "requant": ("two_step", "one_step"),
        "passes": ("fitted", "single"),
        "max_rows": (3, 2, WHOLE),
        "max_columns": (6, 3, WHOLE),
        "ties": ("half_away", "half_up", "half_even"),
        "pre_rounding": ("floor", "half_away", "half_up", "half_even"),
        "constant_rounding": ("floor", "half_away"),
        "add_constant_ties": ("half_away", "half_even"),
        "unit_map": ("input", "output_when_strided"),
    }
)
"""Switches of a profile, and the values that are tried."""


@dataclass(frozen=True, slots=True)
class Setting:
    """where: NETWORK or a node. what: a switch, "profile", "shift" or "channels". value: new."""

    where: str
    what: str
    value: Any

    def __str__(self) -> str:
        value = "whole" if self.value == WHOLE else self.value
        return f"{self.where}: {self.what} = {value}"

    def to_json(self) -> dict[str, Any]:
        return {"where": self.where, "what": self.what, "value": self.value}


Settings = tuple[Setting, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """alternatives: settings (each a tuple; empty for no change) that give one and the same
    numbers, with which every value of the dump is equal."""

    alternatives: tuple[Settings, ...]

    def __str__(self) -> str:
        return ", or ".join(described(settings) for settings in self.alternatives)


@dataclass(frozen=True, slots=True)
class Findings:
    """tried: different sets of numbers that were compared. skipped: pairs left out for their
    number. closest: settings that explain nothing, with the values that differ in the first SCREEN
    images, fewest first."""

    explanations: tuple[Explanation, ...]
    tried: int
    skipped: int
    closest: tuple[tuple[Settings, int], ...]

    @property
    def verdict(self) -> str:
        return {0: "not explained", 1: "explained"}.get(
            len(self.explanations), "several explain it equally"
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "verdict": self.verdict,
            "tried": self.tried,
            "skipped_pairs": self.skipped,
            "explanations": [
                [[s.to_json() for s in settings] for settings in e.alternatives]
                for e in self.explanations
            ],
            "closest": [
                {"settings": [s.to_json() for s in settings], "differing": count}
                for settings, count in self.closest
            ],
        }


def described(settings: Settings) -> str:
    """In words."""
    return " and ".join(map(str, settings)) or "as compiled"


def search(
    program: Program, dump: Dump, threads: int = 1, most_pairs: int = MOST_PAIRS
) -> Findings:
    """Every setting, then if need be every pair, under which the program equals the dump."""
    trial = _Trial(program, dump, threads)
    trial.attempt([(), *((setting,) for setting in settings_for(program))])
    if trial.explained or most_pairs < 1:
        return trial.findings(0)
    # One setting for each set of numbers; those that came closest alone are paired first.
    single = [settings[0] for settings in trial.ranked() if settings]
    ranked = sorted(itertools.combinations(enumerate(single), 2), key=lambda p: p[0][0] + p[1][0])
    pairs = [
        (a, b)
        for (_, a), (_, b) in ranked
        if (a.where, a.what) != (b.where, b.what) and "profile" not in (a.what, b.what)
    ]
    trial.attempt(pairs[:most_pairs])
    return trial.findings(max(0, len(pairs) - most_pairs))


def settings_for(program: Program) -> Iterator[Setting]:
    """All single settings of a program."""
    for name in profile_names():
        if name != program.profile.name:
            yield Setting(NETWORK, "profile", name)
    layers = [n for n, lowered in program.lowering.items() if lowered.to_json()]
    for where in (NETWORK, *layers):
        for what, values in SWITCHES.items():
            if what in program.profile.switches:
                current = program.profile.switches[what]
                yield from (Setting(where, what, v) for v in values if v != current)
        lowered = program.lowering.get(where)
        if isinstance(lowered, Convolution):
            yield from _layer_settings(where, lowered)


def _layer_settings(node: str, lowered: Convolution) -> Iterator[Setting]:
    """Other shifts, and other numbers of passes."""
    for distance in SHIFTS:
        if lowered.shift + distance >= 0:
            yield Setting(node, "shift", lowered.shift + distance)
    depth, units, passes = lowered.channels[0]
    total = depth * units * passes
    if len(set(lowered.channels)) == 1:
        for other in sorted(
            {passes // 4, passes // 2, passes * 2, passes * 4, total} - {0, passes}
        ):
            if total % other == 0:
                each = (total // other, 1, other)
                yield Setting(node, "channels", (each,) * len(lowered.channels))


def lowering_under(program: Program, settings: Settings) -> tuple[Profile, dict[str, Lowered]]:
    """The numbers of a program with these settings; those of other nodes stay as they are.

    Raises NpusimError where a setting cannot be computed with.
    """
    graph = program.graph
    for setting in settings:
        if setting.what == "profile":
            profile = load_profile(setting.value)
            return profile, dict(compile_graph(graph, profile, "numpy").lowering)
    changed = dict(program.lowering)
    for site in graph.sites():
        node = site.node.name
        own = {s.what: s.value for s in settings if s.where in (NETWORK, node)}
        channels = own.pop("channels", None)
        if own:
            profile = replace(program.profile, switches={**program.profile.switches, **own})
            changed[node] = rule_for(site, profile).lower(site, profile)
        if channels is not None:
            changed[node] = changed[node].changed(channels=channels)
    return program.profile, changed


class _Trial:
    """Explanations of one dump so far; settings with equal numbers are compared once."""

    def __init__(self, program: Program, dump: Dump, threads: int) -> None:
        self.program = program
        self.dump = dump
        self.screen = _first(program.graph, dump, SCREEN)
        self.threads = threads
        self.base = _key(program.profile, program.lowering)
        self.explained: dict[str, list[Settings]] = {}
        self.differing: dict[str, int] = {}
        self.names: dict[str, Settings] = {}

    def attempt(self, candidates: Iterable[Settings]) -> None:
        for settings in candidates:
            try:
                profile, lowering = lowering_under(self.program, settings)
                key = _key(profile, lowering)
                if settings and key == self.base:
                    continue  # it changes nothing here
                if key in self.explained:
                    self.explained[key].append(settings)
                elif key not in self.differing:
                    self._compare(key, settings, profile, lowering)
            except NpusimError:
                continue  # this network cannot be computed that way

    def _compare(
        self, key: str, settings: Settings, profile: Profile, lowering: Mapping[str, Lowered]
    ) -> None:
        program = compile_graph(self.program.graph, profile, self.program.engine, lowering)
        self.names[key] = settings
        self.differing[key] = compare(program, self.screen).differing
        if not self.differing[key] and compare(program, self.dump, self.threads).equal:
            self.explained[key] = [settings]

    def ranked(self) -> list[Settings]:
        """Settings that explain nothing, the closest first."""
        failed = [k for k in self.differing if k not in self.explained]
        return [self.names[k] for k in sorted(failed, key=self.differing.__getitem__)]

    def findings(self, skipped: int) -> Findings:
        by_name = {self.names[key]: count for key, count in self.differing.items()}
        return Findings(
            tuple(Explanation(tuple(found)) for found in self.explained.values()),
            len(self.differing),
            skipped,
            tuple((settings, by_name[settings]) for settings in self.ranked()[:3]),
        )


def _key(profile: Profile, lowering: Mapping[str, Lowered]) -> str:
    """Equal where rules and numbers are."""
    return json.dumps([dict(profile.rules), lowering_to_json(lowering)], sort_keys=True)


def _first(graph: Graph, dump: Dump, count: int) -> Dump:
    """The first images of a dump."""

    def cut(arrays: Mapping[str, Any]) -> dict[str, Any]:
        return {n: a[:count] if graph.value(n).type.lifted else a for n, a in arrays.items()}

    return replace(dump, inputs=cut(dump.inputs), tensors=cut(dump.tensors))
