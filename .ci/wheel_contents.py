"""Checks that a wheel holds npusim and nothing else, and every file of it that git tracks.

A forgotten sub-package works in an editable install and is missing from the wheel.

Usage: python3 .ci/wheel_contents.py WHEEL, in the checkout.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile

FOLDERS = ("npusim", "quant", "zo", "models", "bench")
ENDINGS = (".py", ".toml", ".onnx", "py.typed")


def tracked() -> set[str]:
    """What the wheel should hold: quant, zo, models and bench are installed below npusim."""
    listing = subprocess.run(
        ["git", "ls-files", "--", *FOLDERS], capture_output=True, text=True, check=True
    )
    files = (name for name in listing.stdout.splitlines() if name.endswith(ENDINGS))
    return {name if name.startswith("npusim/") else f"npusim/{name}" for name in files}


def held(wheel: str) -> set[str]:
    """The wheel's files, without its own metadata."""
    with zipfile.ZipFile(wheel) as archive:
        return {n for n in archive.namelist() if ".dist-info/" not in n}


def main(wheel: str) -> int:
    files, wanted = held(wheel), tracked()
    problems = [f"missing from the wheel: {name}" for name in sorted(wanted - files)]
    problems += [f"not tracked, or not to be shipped: {name}" for name in sorted(files - wanted)]
    names = {name.split("/")[0] for name in files}
    if names != {"npusim"}:
        problems.append(f"top-level names: {', '.join(sorted(names))}; wanted npusim only")
    print("\n".join(problems) if problems else f"the wheel holds the {len(files)} tracked files")  # noqa: T201
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
