"""Does any test notice if a rounding, shift, saturation or constant of numerics/ is changed?

    python tests/mutate.py [--file NAME]... [--part K/N] [--match TEXT]... [--list]

Every constant, operator, comparison, rounding and saturation of the named files (default: all of
npusim/numerics) is changed in turn, one at a time, in memory only, and the tests judge it (see
mutation/session.py). A mutant that no test fails on survives and is printed, unless
mutation/equivalent.py says why it computes the same. One that takes too long is killed, and
printed too. Exit code 1 if any survives, or if a listed equivalent does not.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TextIO

from mutation.changes import Mutant, mutants
from mutation.equivalent import EQUIVALENT
from mutation.session import ROOT, Session

NUMERICS = ROOT / "npusim" / "numerics"
OTHER_TESTS = (
    "ops/test_neural_art_rules.py",
    "ops/test_cmsis_nn.py",
    "ops/test_refusals.py",
    "ops/test_resnet_units.py",
)
"""Besides tests/numerics: what runs the references with the engine numpy."""


class Report:
    """Prints verdicts and counts them."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.counts: dict[str, Counter[str]] = {}
        self.bad = 0

    def line(self, text: str) -> None:
        self.stream.write(text + "\n")
        self.stream.flush()

    def count(self, mutant: Mutant, verdict: str, text: str = "") -> None:
        """Count a mutant; print it where ``text`` says why."""
        self.counts.setdefault(mutant.path.name, Counter())[verdict] += 1
        if text:
            self.line(f"{text}: {mutant}")

    def table(self) -> None:
        """One row a file."""
        names = ("killed", "timeout", "equivalent", "survived")
        self.line("| file | mutants | killed | of them by time | equivalent | survived |")
        self.line("|---|---|---|---|---|---|")
        total: Counter[str] = Counter()
        for file, counts in [*self.counts.items(), ("all", total)]:
            killed, timeout, equivalent, survived = (counts[name] for name in names)
            numbers = (killed + equivalent + survived, killed, timeout, equivalent, survived)
            self.line(f"| {file} | {' | '.join(map(str, numbers))} |")
            total.update(counts if file != "all" else {})


def judge_all(session: Session, chosen: Iterable[Mutant], report: Report) -> None:
    """Judge every mutant in order."""
    for mutant in chosen:
        verdict = session.judge(mutant)
        equivalent = mutant.key in EQUIVALENT
        if verdict.killed:
            report.bad += equivalent
            slow = "timeout" if verdict.timeout else ""
            report.count(mutant, "killed", "listed as equivalent, but killed" * equivalent or slow)
            report.counts[mutant.path.name]["timeout"] += verdict.timeout
        elif equivalent:
            report.count(mutant, "equivalent")
        else:
            report.bad += 1
            report.count(mutant, "survived", "survived")


def stale(paths: Iterable[Path]) -> list[str]:
    """Entries of the equivalents that name no mutant."""
    files = {path.name: {mutant.key for mutant in mutants(path)} for path in paths}
    return [str(key) for key in EQUIVALENT if key[0] in files and key not in files[key[0]]]


def part_of(paths: list[Path], part: tuple[int, int]) -> list[Mutant]:
    """Every n-th mutant of each file, from the k-th on."""
    number, count = part
    return [mutant for path in paths for mutant in list(mutants(path))[number - 1 :: count]]


def _fraction(text: str) -> tuple[int, int]:
    number, count = map(int, text.split("/"))
    if not 1 <= number <= count:
        raise ValueError
    return number, count


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Mutation test of npusim/numerics.")
    parser.add_argument("--file", action="append", help="a file of npusim/numerics")
    parser.add_argument("--part", type=_fraction, default=(1, 1), metavar="K/N")
    parser.add_argument("--match", action="append", help="mutants whose description has the text")
    parser.add_argument("--list", action="store_true", help="print the mutants only")
    options = parser.parse_args(arguments)
    paths = [NUMERICS / f for f in options.file or sorted(p.name for p in NUMERICS.glob("*.py"))]
    chosen = part_of(paths, options.part)
    if options.match:
        chosen = [m for m in chosen if any(text in str(m) for text in options.match)]
    report = Report(os.fdopen(os.dup(1), "w"))
    if options.list:
        for mutant in chosen:
            report.line(str(mutant))
        return 0
    if unknown := stale(paths):
        report.line("\n".join(["these equivalents name no mutant:", *unknown]))
        return 1
    return _run(chosen, report)


@contextlib.contextmanager
def output_in(path: Path) -> Iterator[None]:
    """What this process and its children print goes to a file."""
    kept = os.dup(1), os.dup(2)
    with path.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept[0], 1)
        os.dup2(kept[1], 2)


def _run(chosen: list[Mutant], report: Report) -> int:
    files = [*sorted((ROOT / "tests" / "numerics").glob("test_*.py"))]
    files = [f for f in files if f.stem != "test_mutation_share"]
    files += [ROOT / "tests" / name for name in OTHER_TESTS]
    session = Session(files, lambda s: judge_all(s, chosen, report))
    os.chdir(ROOT)
    os.environ.pop("CI", None)
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = scratch
        log = Path(scratch) / "pytest.log"
        with output_in(log):
            status = session.start()
        if status != 0:
            report.line(log.read_text())
            return 1
    report.table()
    return 1 if report.bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
