"""Every dot instruction gives the same bits, and a changed kernel source is never served stale."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from npusim.errors import UsageError
from npusim.kernels import isa

PROGRAM = """
import sys, zlib
sys.path.insert(0, sys.argv[1])
import npusim
from npusim.errors import BadQuantization
from random_units import random_case
from npusim.kernels.isa import dot_instruction
crc = 0
for profile in ("onnxruntime", "neural-art"):
    for seed in range(8):
        case = random_case("QLinearConv", seed)
        try:
            program = npusim.compile(case.graph, profile)
        except BadQuantization:
            continue
        crc = zlib.crc32(program.run(case.feeds)["y"], crc)
print(dot_instruction(), crc)
"""


def run(root: Path, folder: Path | None = None, **environment: str) -> tuple[str, str]:
    """(dot instruction, CRC of the outputs) in a process of its own, of the package in folder."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(root / "tests" / "ops")],
        env=os.environ | environment,
        cwd=folder or root,
        capture_output=True,
        text=True,
        check=True,
    )
    name, crc = done.stdout.split()
    return name, crc


def test_unknown_instruction_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPUSIM_DOT", "mmx")
    isa.dot_instruction.cache_clear()
    with pytest.raises(UsageError, match=r"NPUSIM_DOT.*mmx.*avx2"):
        isa.dot_instruction()
    isa.dot_instruction.cache_clear()


@pytest.mark.long
def test_all_paths_give_the_same_bits(root: Path) -> None:
    _, wanted = run(root)
    assert run(root, NPUSIM_DOT="sse2") == ("sse2", wanted)
    assert run(root, NPUSIM_DOT="generic") == ("generic", wanted)


@pytest.mark.long
@pytest.mark.skipif(not isa.is_x86(), reason="names an x86 processor")
def test_target_without_avx2(root: Path) -> None:
    _, wanted = run(root)
    assert run(root, NUMBA_CPU_NAME="x86-64", NUMBA_CPU_FEATURES="") == ("sse2", wanted)


@pytest.mark.long
def test_a_changed_helper_is_compiled_anew(root: Path, tmp_path: Path) -> None:
    """The step that is cached lies in another file, so that Numba alone would not notice."""
    copy = tmp_path / "npusim"
    shutil.copytree(root / "npusim", copy, ignore=shutil.ignore_patterns("__pycache__"))
    first = run(root, tmp_path)
    source = copy / "kernels" / "epilogue.py"
    text = source.read_text()
    assert text.count("np.uint8(np.int32(scaled) + shifted)") == 1
    source.write_text(text.replace("np.int32(scaled) + shifted", "np.int32(scaled) + shifted + 1"))
    assert run(root, tmp_path) != first


@pytest.mark.long
def test_a_damaged_cache_only_costs_a_compilation(root: Path, tmp_path: Path) -> None:
    first = run(root, NUMBA_CACHE_DIR=str(tmp_path))
    for path in tmp_path.rglob("*.nb[ic]"):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert run(root, NUMBA_CACHE_DIR=str(tmp_path)) == first


def test_without_the_compiler_the_message_names_the_other_engine(root: Path) -> None:
    code = PROGRAM.replace("except BadQuantization", "except ZeroDivisionError")
    done = subprocess.run(
        [sys.executable, "-c", code, str(root / "tests" / "ops")],
        env=os.environ | {"NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "NUMBA_DISABLE_JIT" in done.stderr
    assert "--engine numpy" in done.stderr
