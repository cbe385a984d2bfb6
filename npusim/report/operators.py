"""The page of supported operators, made from the registry and the profiles."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import npusim.ops  # noqa: F401  (fills the registry)
from npusim.numerics.profile import Profile, load_profile, profile_names
from npusim.ops.base import OpSpec, all_specs
from npusim.report.evidence import CASES
from npusim.report.model import PLACES

SCHEMA_VERSION = 1

FORMS = {
    "qdq": "between DequantizeLinear and QuantizeLinear",
    "qoperator": "takes codes itself",
    "any": "codes or floats",
    "float": "floats",
}


@dataclass(frozen=True, slots=True)
class OnnxForm:
    """An ONNX operator that is read as the operator; since: its versions that are understood."""

    domain: str
    op_type: str
    since: tuple[int, ...]
    form: str


@dataclass(frozen=True, slots=True)
class SupportedOp:
    """An operator; rules: profile -> [rule, evidence level, source], none where it only moves
    or compares codes."""

    name: str
    summary: str
    runs_on: str
    onnx: tuple[OnnxForm, ...]
    rules: dict[str, tuple[str, str, str]]


def supported_operators() -> tuple[SupportedOp, ...]:
    """All operators by name, with what every profile says about them."""
    profiles = [load_profile(name) for name in profile_names()]
    return tuple(_supported(spec, profiles) for spec in all_specs())


def _supported(spec: OpSpec, profiles: list[Profile]) -> SupportedOp:
    rules = {}
    for profile in profiles:
        if spec.name in profile.rules:
            evidence = profile.evidence[spec.name]
            rules[profile.name] = (profile.rules[spec.name], evidence.level, evidence.source)
    onnx = (OnnxForm(row.domain, row.op_type, row.since, row.form) for row in spec.onnx)
    return SupportedOp(spec.name, spec.summary, spec.runs_on, tuple(onnx), rules)


def operators_json() -> dict[str, Any]:
    """The same as JSON types."""
    return {
        "schema_version": SCHEMA_VERSION,
        "profiles": {name: load_profile(name).summary for name in profile_names()},
        "operators": [asdict(op) for op in supported_operators()],
    }


def operators_page() -> str:
    """docs/operators.md."""
    lines = [
        "# Supported operators",
        "",
        "Written by `npusim ops --markdown`; do not edit. A model with any other operator is",
        "refused, with the node's name. Software epochs run on the CPU; where they compute with",
        "floats they are not bit-accurate.",
        "",
        "| operator | what it computes | runs on | ONNX operators (versions) |",
        "|---|---|---|---|",
    ]
    operators = supported_operators()
    lines += [
        f"| {op.name} | {op.summary} | {PLACES[op.runs_on]} | {_onnx(op)} |" for op in operators
    ]
    lines += ["", "## Arithmetic under each profile", ""]
    lines += ["Operators that are not listed only move or compare codes: every profile agrees."]
    lines += ["A *case* weakens the evidence of the nodes that it is about; `npusim inspect` shows"]
    lines += ["every node's own.", ""]
    for name in profile_names():
        lines += _profile_section(load_profile(name), operators)
    return "\n".join(lines).rstrip() + "\n"


def profile_summary(profile: Profile) -> str:
    """Whose arithmetic it is; of a "family/variant" what it changes."""
    family, _, variant = profile.name.partition("/")
    if not variant:
        return profile.summary
    base = load_profile(family)
    chosen = {**base.rules, **base.switches}
    new = {**profile.rules, **profile.switches}
    changed = [f"{name} = {value}" for name, value in new.items() if chosen.get(name) != value]
    return f"as {family}, {', '.join(changed) or 'without a change'}"


def _onnx(op: SupportedOp) -> str:
    return "<br>".join(
        f"{f'{row.domain}.' if row.domain else ''}{row.op_type} "
        f"({', '.join(map(str, row.since))}; {FORMS[row.form]})"
        for row in op.onnx
    )


def _profile_section(profile: Profile, operators: tuple[SupportedOp, ...]) -> list[str]:
    """A profile's rules, switches and cases; of a "family/variant" those that it changes."""
    family, _, variant = profile.name.partition("/")
    base = load_profile(family) if variant else None
    rows = [(op.name, *op.rules[profile.name]) for op in operators if profile.name in op.rules]
    rows += [
        (f"{key} = {value}", "switch", *_why(profile, key)) for key, value in _switches(profile)
    ]
    rows += [(CASES[key].words, "case", e.level, e.source) for key, e in profile.cases.items()]
    if base is not None:
        known = {(op.name, *op.rules[base.name]) for op in operators if base.name in op.rules}
        known |= {(f"{k} = {v}", "switch", *_why(base, k)) for k, v in _switches(base)}
        known |= {(CASES[k].words, "case", e.level, e.source) for k, e in base.cases.items()}
        rows = [row for row in rows if row not in known]
    lines = [f"### {profile.name}", "", f"As {family}, except:" if base else profile.summary, ""]
    lines += ["| operator, switch or case | rule | evidence | source |", "|---|---|---|---|"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows), ""]


def _switches(profile: Profile) -> list[tuple[str, object]]:
    return sorted(profile.switches.items())


def _why(profile: Profile, switch: str) -> tuple[str, str]:
    evidence = profile.evidence[f"switch {switch}"]
    return evidence.level, evidence.source
