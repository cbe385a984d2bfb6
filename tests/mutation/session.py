"""Tests that are collected once, and judge every mutant in a fork of the collected session.

A mutant inside a function takes effect by giving the function another code object, so nothing is
imported again; only tests that enter that function run. A mutant outside of functions, and one that
survived so in a function that imports or collection had entered before, is judged by importing
everything anew. Linux only (fork).
"""

from __future__ import annotations

import gc
import importlib.abc
import importlib.machinery
import json
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any, NamedTuple, NoReturn

import hypothesis
import pytest

from mutation.changes import Mutant

ROOT = Path(__file__).resolve().parents[2]
BASE_SECONDS, TIMES = 4, 5
"""A mutant may take this much processor time, and so many times that of the unchanged code."""

HARNESS_FAILED = 3
TESTS_FAILED, COLLECTION_FAILED = 1, 2
"""Exit codes: of a child that did not get as far as a verdict; of pytest."""

MORE_MEMORY = 2 << 30
"""Bytes that a mutant may take beyond what the session has."""


class Verdict(NamedTuple):
    """killed: by a test, or by time. by: the test that failed, if it is known."""

    killed: bool
    timeout: bool = False
    by: str = ""


@dataclass
class Session:
    """A pytest plugin that hands the collected tests to ``work`` in place of running them."""

    files: Sequence[Path]
    work: Callable[[Session], None]
    items: list[pytest.Item] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    entered: dict[str, set[tuple[str, str]]] = field(default_factory=dict)
    functions: dict[tuple[str, str], list[FunctionType]] = field(default_factory=dict)
    latest: list[str] = field(default_factory=list)
    collecting: set[tuple[str, str]] = field(default_factory=set)
    fresh_import_passes: bool = False
    latest_file: str = ""
    pytest_session: Any = None

    def start(self) -> int:
        """Pytest's exit code."""
        _quiet_hypothesis()
        return int(pytest.main([*OPTIONS, *map(str, self.files)], plugins=[self, NumpyOnly()]))

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Generator[None, object, object]:
        with _entered_functions() as places:
            result = yield
        self.collecting = places
        return result

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.pytest_session = session
        self.items = list(session.items)
        for function in (f for f in gc.get_objects() if isinstance(f, FunctionType)):
            place = (Path(function.__code__.co_filename).name, function.__code__.co_qualname)
            if function.__module__ and function.__module__.startswith("npusim.numerics"):
                self.functions.setdefault(place, []).append(function)
        self._measure()
        self.work(self)
        self._measure()  # all along, it was the mutants that failed
        return True

    def _measure(self) -> None:
        """Run every test unchanged: its processor time, and the functions that it enters."""
        status, text = _in_child(self._measured, None)
        failed = [line for line in text.splitlines() if not line.startswith("[")]
        if status or failed:
            raise pytest.UsageError(f"tests fail without any change: {' '.join(failed) or status}")
        for line in text.splitlines():
            name, seconds, places = json.loads(line)
            self.seconds[name] = seconds
            self.entered[name] = {(file, scope) for file, scope in places}

    def _measured(self, out: int) -> bool:
        for item in self.items:
            begin = time.process_time()
            with _entered_functions() as places:
                failed = self._run(item)
            name = item.nodeid
            line = json.dumps([name, time.process_time() - begin, sorted(places)])
            os.write(out, f"{name if failed else line}\n".encode())
        return False

    def _run(self, item: pytest.Item) -> bool:
        """True where the test fails."""
        before = self.pytest_session.testsfailed
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        return bool(self.pytest_session.testsfailed > before)

    def judge(self, mutant: Mutant) -> Verdict:
        """Does any test notice?"""
        place = (mutant.path.name, mutant.scope)
        if place in self.functions:
            verdict = self._judge_in_place(mutant)
            if verdict.killed or place not in self.collecting:
                return verdict
        return self._judge_anew(mutant)

    def _judge_anew(self, mutant: Mutant) -> Verdict:
        seconds = sum(self.seconds.values())
        if not self.fresh_import_passes:
            if judge_anew(None, self.files, seconds).killed:
                raise RuntimeError("tests fail when npusim is imported a second time")
            self.fresh_import_passes = True
        own = f"test_{mutant.path.stem}"
        order = sorted(self.files, key=lambda f: (f.stem != own, f.name not in self.latest_file))
        verdict = judge_anew(mutant, order, seconds)
        self.latest_file = verdict.by or self.latest_file
        return verdict

    def _judge_in_place(self, mutant: Mutant) -> Verdict:
        chosen = self._chosen(mutant)

        def run(out: int) -> bool:
            _exchange(self.functions[mutant.path.name, mutant.scope], mutant)
            for item in chosen:
                if self._run(item):
                    os.write(out, item.nodeid.encode())
                    return True
            return False

        status, by = _in_child(run, sum(self.seconds[i.nodeid] for i in chosen))
        if by:
            self.latest = [by, *(name for name in self.latest if name != by)]
        return Verdict(status != 0, status == -signal.SIGPROF, by)

    def _chosen(self, mutant: Mutant) -> list[pytest.Item]:
        """Tests that enter the function: own ones first, then those that killed last, then fast."""
        place = (mutant.path.name, mutant.scope)
        own = f"test_{mutant.path.stem}"
        rank = {name: i for i, name in enumerate(self.latest)}

        def decisive(item: pytest.Item) -> tuple[bool, int, float]:
            name = item.nodeid
            return item.path.stem != own, rank.get(name, len(rank)), self.seconds[name]

        return sorted((i for i in self.items if place in self.entered[i.nodeid]), key=decisive)


class NumpyOnly:
    """Leaves out the tests of compiled kernels: the references decide."""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [i for i in items if "fast" not in getattr(i, "callspec", _NONE).params.values()]


class _NoParameters:
    params: dict[str, Any] = {}  # noqa: RUF012  # stands for pytest's CallSpec


_NONE = _NoParameters()
OPTIONS = (
    "-q", "-s", "-x", "-p", "no:cacheprovider", "-p", "no:benchmark", "-p", "no:xdist",
    "-W", "ignore::pytest.PytestAssertRewriteWarning",
)  # fmt: skip


def judge_anew(mutant: Mutant | None, files: Sequence[Path], seconds: float) -> Verdict:
    """The same, from a fresh import of npusim and of the tests, one file after another.

    None stands for unchanged code, which no test may find fault with.
    """

    def run(out: int) -> bool:
        for name in list(sys.modules):
            if _is_ours(sys.modules[name]):
                del sys.modules[name]
        if mutant is not None:
            module = ".".join(mutant.path.relative_to(ROOT).with_suffix("").parts)
            sys.meta_path.insert(0, _Changed(module, mutant.code()))
        failing = next(filter(_fails, files), None)
        os.write(out, failing.name.encode() if failing else b"")
        return failing is not None

    status, by = _in_child(run, BASE_SECONDS + seconds)
    return Verdict(status != 0, status == -signal.SIGPROF, by)


def _fails(file: Path) -> bool:
    status = int(pytest.main([*OPTIONS, str(file)], plugins=[NumpyOnly()]))
    if status not in {0, TESTS_FAILED, COLLECTION_FAILED}:
        raise RuntimeError(f"pytest ended with {status}")
    return status != 0


def _is_ours(module: ModuleType) -> bool:
    """True for modules of the checkout; a virtual environment in it holds others'."""
    file = getattr(module, "__file__", None)
    if file is None or "mutation" in module.__name__:
        return False
    path = Path(file)
    return ROOT in path.parents and "site-packages" not in path.parts


class _Changed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from compiled code instead of its file."""

    def __init__(self, name: str, code: CodeType) -> None:
        self.name = name
        self.code = code

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, origin=self.code.co_filename)

    def exec_module(self, module: ModuleType) -> None:
        module.__file__ = self.code.co_filename
        exec(self.code, module.__dict__)


def _exchange(functions: list[FunctionType], mutant: Mutant) -> None:
    """Give the functions of the mutant's scope its code. Raises LookupError if there is none."""
    new = next(code for code in _codes(mutant.code()) if code.co_qualname == mutant.scope)
    for function in functions:
        function.__code__ = new


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


class _entered_functions:  # noqa: N801  # reads as a with statement's function
    """Collects (file, outermost function) of every call into npusim/numerics."""

    folder = str(ROOT / "npusim" / "numerics")

    def __enter__(self) -> set[tuple[str, str]]:
        codes: set[CodeType] = set()
        self.codes = codes
        self.places: set[tuple[str, str]] = set()

        def called(frame: FrameType, event: str, _: Any) -> None:
            if event == "call":
                codes.add(frame.f_code)

        threading.setprofile(called)
        sys.setprofile(called)
        return self.places

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)
        for code in self.codes:
            path = Path(code.co_filename)
            if str(path.parent) == self.folder:
                self.places.add((path.name, code.co_qualname.partition(".<locals>")[0]))


def _in_child(run: Callable[[int], bool], seconds: float | None) -> tuple[int, str]:
    """(0, 1 where ``run`` returns true, or minus the signal; what it wrote) of a fork.

    seconds: processor time of the unchanged code, which bounds the child's; None: no bound.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _child(run, writing, seconds)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status == HARNESS_FAILED:
        raise RuntimeError(f"the mutation session itself failed: {text}")
    return status, text


def _child(run: Callable[[int], bool], writing: int, seconds: float | None) -> NoReturn:
    status = HARNESS_FAILED
    with suppress(Exception):
        if seconds is not None:
            signal.setitimer(signal.ITIMER_PROF, BASE_SECONDS + TIMES * seconds)
            pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
            limit = pages * resource.getpagesize() + MORE_MEMORY
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        status = int(run(writing))
    os._exit(status)


def _quiet_hypothesis() -> None:
    """The same examples every time, and none is made smaller: a failure is all that counts."""
    with suppress(KeyError):
        hypothesis.settings.register_profile(
            "mutation",
            derandomize=True,
            database=None,
            deadline=None,
            phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
        )
    hypothesis.settings.load_profile("mutation")
