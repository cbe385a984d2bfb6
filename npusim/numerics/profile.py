"""A numerics profile: which arithmetic each operator follows, as data with its evidence.

Profiles are the TOML files in numerics/profiles. Nothing else in the package asks a profile for
its name: operators ask which rule they follow and read the switches of that rule.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from npusim.errors import UsageError

DEFAULT_PROFILE = "neural-art"

EVIDENCE = ("silicon", "descriptor", "vendor", "measured", "inferred", "assumed")
"""From the surest to the least sure."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """How sure a field of a profile is.

    level: one of EVIDENCE. "measured" means compared here with the runtime itself.
    source: where it comes from, in words.
    """

    level: str
    source: str


@dataclass(frozen=True)
class Profile:
    """rules: operator -> name of its rule. switches: options that those rules read.

    evidence: of "<operator>" and "switch <name>". cases: evidence of what only some nodes do, by
    the case's name in npusim.report.evidence; a node's evidence is the weakest that concerns it.
    """

    name: str
    summary: str
    rules: Mapping[str, str]
    switches: Mapping[str, Any] = field(default_factory=dict)
    evidence: Mapping[str, Evidence] = field(default_factory=dict)
    cases: Mapping[str, Evidence] = field(default_factory=dict)


def profile_names() -> tuple[str, ...]:
    """Names of the profiles that come with the package, variants ("family/variant") included."""
    names: list[str] = []
    for entry in files(__package__).joinpath("profiles").iterdir():
        if entry.name.endswith(".toml"):
            data = tomllib.loads(entry.read_text("utf-8"))
            names.append(data["name"])
            names += [f"{data['name']}/{variant}" for variant in data.get("variants", {})]
    return tuple(sorted(names))


@cache
def load_profile(name: str) -> Profile:
    """The profile of this name.

    Raises UsageError, which lists the names there are.
    """
    if name not in profile_names():
        raise UsageError(
            "unknown profile", where=name, wanted=f"one of {', '.join(profile_names())}"
        )
    family, _, variant = name.partition("/")
    path = files(__package__).joinpath("profiles", f"{family.replace('-', '_')}.toml")
    data = tomllib.loads(path.read_text("utf-8"))
    rules, switches = dict(data["rules"]), dict(data.get("switches", {}))
    if variant:
        changes = data["variants"][variant]
        rules |= changes.get("rules", {})
        switches |= changes.get("switches", {})
    return _from_tables(name, data["summary"], rules, switches, data.get("cases", {}))


def _from_tables(
    name: str,
    summary: str,
    rules: dict[str, Any],
    switches: dict[str, Any],
    cases: dict[str, Any],
) -> Profile:
    entries = {**rules, **{f"switch {k}": v for k, v in switches.items()}}
    return Profile(
        name=name,
        summary=summary,
        rules={op: entry["rule"] for op, entry in rules.items()},
        switches={key: entry["value"] for key, entry in switches.items()},
        evidence={key: _evidence(entry, f"{name}: {key}") for key, entry in entries.items()},
        cases={key: _evidence(entry, f"{name}: {key}") for key, entry in cases.items()},
    )


def _evidence(entry: Mapping[str, Any], where: str) -> Evidence:
    assert entry["evidence"] in EVIDENCE, where
    return Evidence(entry["evidence"], entry["source"])
