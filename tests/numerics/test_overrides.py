"""Overriding numbers of a lowering: what is accepted, and how mistakes are told."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from npusim.errors import CheckpointError, UsageError
from npusim.numerics.lowered import Lowered, lowering_from_json, lowering_to_json
from npusim.numerics.neural_art_epilogue import Joined, Keep, OneStep
from npusim.numerics.overrides import override, read_overrides
from npusim.numerics.requant import read_only


@dataclass(frozen=True)
class Inner(Lowered):
    shift: int


@dataclass(frozen=True)
class Outer(Lowered):
    shift: int
    scale: float
    ties: str
    pair: tuple[int, int]
    codes: npt.NDArray[np.int32]
    reals: npt.NDArray[np.float32]
    inner: Inner
    steps: tuple[Inner, ...]


def outer() -> Outer:
    return Outer(
        1, 0.5, "up", (1, 2), read_only([1, 2], np.int32), read_only([0.5], np.float32),
        Inner(3), (Inner(4), Inner(5)),
    )  # fmt: skip


def changed(**fields: Any) -> Any:
    return override({"a": outer(), "b": Inner(9)}, {"a": fields})["a"]


def test_every_kind_of_field() -> None:
    new = changed(
        shift=7, scale=2, ties="down", pair=[3, 4], codes=[8, 9], reals=[1],
        inner={"shift": 30}, steps={"1": {"shift": 50}},
    )  # fmt: skip
    assert (new.shift, new.scale, new.ties, new.pair) == (7, 2.0, "down", (3, 4))
    assert isinstance(new.scale, float)
    assert (new.codes.tolist(), new.codes.dtype.name) == ([8, 9], "int32")
    assert (new.reals.tolist(), new.reals.dtype.name) == ([1.0], "float32")
    assert not new.codes.flags.writeable
    assert (new.inner, new.steps) == (Inner(30), (Inner(4), Inner(50)))
    assert changed(steps=[{"shift": 1}, {"shift": 2}]).steps == (Inner(1), Inner(2))


def test_a_list_of_steps_changes_each_in_its_place() -> None:
    lowering = {"j": Joined((Keep(-1, 2, 0), Keep(-5, 6, 128)))}
    new = override(lowering, {"j": {"operands": [{"lo": -3}, {"lo": -4}]}})
    assert new["j"] == Joined((Keep(-3, 2, 0), Keep(-4, 6, 128)))


def test_other_nodes_and_the_given_mapping_stay() -> None:
    lowering = {"a": Inner(1), "b": Inner(2)}
    assert override(lowering, {"b": {"shift": 3}}) == {"a": Inner(1), "b": Inner(3)}
    assert lowering == {"a": Inner(1), "b": Inner(2)}


def test_a_dumped_lowering_is_an_override_that_changes_nothing() -> None:
    lowering = {"a": outer(), "j": Joined((Keep(-1, 2, 0),))}
    data = json.loads(json.dumps(lowering_to_json(lowering)))
    assert lowering_to_json(override(lowering, data)) == data


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"shfit": 1}, r"a: no field.*got shfit.*Did you mean shift\?"),
        ({"qqq": 1}, r"a: no field.*got qqq.*wanted shift, scale.*show-lowering"),
        ({"shift": 1.5}, r"a\.shift: .*got 1\.5, wanted a whole number"),
        ({"shift": True}, r"a\.shift: .*got True, wanted a whole number"),
        ({"shift": "1"}, r"a\.shift: .*got '1', wanted a whole number"),
        ({"scale": "1"}, r"a\.scale: .*wanted a number"),
        ({"ties": 1}, r"a\.ties: .*wanted a text"),
        ({"pair": 1}, r"a\.pair: .*wanted a list"),
        ({"pair": [1]}, r"a\.pair: .*another length \(got 1, wanted 2"),
        ({"pair": [1, "x"]}, r"a\.pair\[1\]: .*wanted a whole number"),
        ({"codes": [1, 2, 3]}, r"a\.codes: .*another length \(got 3, wanted 2"),
        ({"codes": [1, 0.5]}, r"a\.codes\[1\]: .*wanted whole numbers"),
        ({"codes": [1, 2**31]}, r"a\.codes: a number does not fit \(wanted int32"),
        ({"codes": {"dtype": "int32"}}, r"a\.codes: .*got None, wanted a list"),
        ({"reals": ["x"]}, r"a\.reals\[0\]: .*wanted numbers"),
        ({"inner": 3}, r"a\.inner: .*wanted an object"),
        ({"inner": {"x": 3}}, r"a\.inner: no field"),
        ({"steps": {"2": {}}}, r"a\.steps: no step.*got 2, wanted 0, 1"),
        ({"steps": [{"shift": 1}]}, r"a\.steps: .*another length"),
        ({"type": "Inner"}, r"a: no field.*got type"),
    ],
)
def test_mistakes(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        changed(**fields)


def test_an_unknown_node() -> None:
    with pytest.raises(UsageError, match=r"no node.*got conv_2.*Did you mean conv_1\?"):
        override({"conv_1": Inner(1)}, {"conv_2": {"shift": 1}})
    with pytest.raises(UsageError, match=r"got zzz\)"):
        override({f"conv_{i}": Inner(1) for i in range(21)}, {"zzz": {}})
    with pytest.raises(UsageError, match=r"got zzz, wanted conv_0, .*, conv_19\)"):
        override({f"conv_{i}": Inner(1) for i in range(20)}, {"zzz": {}})
    with pytest.raises(UsageError, match=r"Did you mean conv_21\?"):
        override({"conv_1": Inner(1), "conv_21": Inner(1)}, {"conv_2": {}})


def layer() -> OneStep:
    arrays = {k: read_only([1], np.int64) for k in ("multiplier", "constant", "bias", "gain")}
    return OneStep(
        form="signed", rows=(3, 2), columns=(5,), channels=((8, 2, 1), (8, 2, 1)), shift=3,
        ties="half_away", multiplier_shift=19, lo=-128, hi=127, offset=0, dropped=0, **arrays,
    )  # fmt: skip


def test_a_layer_checks_its_own_numbers() -> None:
    lowering = {"conv": layer()}
    new: Any = override(lowering, {"conv": {"rows": [5], "channels": [[4, 2, 2]], "shift": 4}})
    assert (new["conv"].rows, new["conv"].channels) == ((5,), ((4, 2, 2),))
    assert (new["conv"].shift, new["conv"].multiplier_shift) == (4, 18)
    more: Any = override(lowering, {"conv": {"rows": [3, 1, 1], "channels": [[8, 2, 1]] * 3}})
    assert len(more["conv"].segments()) == 3
    with pytest.raises(UsageError, match=r"^conv: channels must hold.*got 2, wanted 3"):
        override(lowering, {"conv": {"rows": [3, 1, 1]}})
    with pytest.raises(UsageError, match=r"conv\.rows: .*whole kernel \(got 4, wanted 5"):
        override(lowering, {"conv": {"rows": [2, 2]}})
    with pytest.raises(UsageError, match=r"conv\.ties: no rounding.*half_even"):
        override(lowering, {"conv": {"ties": "nearest"}})
    with pytest.raises(UsageError, match=r"conv\.channels\[0\]: .*another length"):
        override(lowering, {"conv": {"channels": [[16, 1], [16, 1]]}})


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "lowering.json"
    with pytest.raises(UsageError, match="cannot be read"):
        read_overrides(path)
    for text in ("{", "[" * 100_000, "\\"):
        path.write_text(text)
        with pytest.raises(UsageError, match=r"lowering\.json: the file is no JSON"):
            read_overrides(path)
    for text in ("[]", '{"conv": 3}', '{"conv": {}, "mean": 3}'):
        path.write_text(text)
        with pytest.raises(UsageError, match="object of objects"):
            read_overrides(path)
    path.write_text('{"conv": {"shift": 3}}')
    assert read_overrides(path) == {"conv": {"shift": 3}}


def test_arrays_from_json_cannot_be_written() -> None:
    back: Any = lowering_from_json(lowering_to_json({"a": outer()}))["a"]
    with pytest.raises(ValueError, match="read-only"):
        back.codes[0] = 5


def test_a_lowering_of_an_unknown_kind() -> None:
    with pytest.raises(CheckpointError, match="Gone"):
        lowering_from_json({"conv": {"type": "Gone", "shift": 3}})
