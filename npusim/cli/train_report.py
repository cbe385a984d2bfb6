"""What npusim train shows while it runs and when it ends."""

from __future__ import annotations

import dataclasses
import shlex
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from npusim.cli.terminal import PLAIN_INTERVAL, emit, emit_json, note, say, verbosity, warn
from npusim.evaluation import Accuracy
from npusim.runinfo import write_run_info
from npusim.zo.loop import Limits, Progress, Score
from npusim.zo.request import TrainRequest, explain_request
from npusim.zo.run import TrainResult, replay, train

SCHEMA_VERSION = 1
SMOOTHING = 0.02
SPEED_WINDOW = 30.0
"""Seconds that the shown speed and the time left look back on."""


def run_training(request: TrainRequest, as_json: bool) -> bool:
    """Train with a progress display; says what came of it. True unless it was interrupted."""
    if request.engine == "fast":
        say("preparing (kernels are compiled once, which takes up to a minute) ...")
    with _display(request.limits) as watch:
        result = train(request, watch, note)
    _write_run_info(request, result)
    if as_json:
        emit_json({"schema_version": SCHEMA_VERSION, **_facts(result)})
    else:
        _tell(result)
    _warn_if_idle(result)
    if not result.finished:
        say(f"Go on with:\n  {_resuming(request)}")
    return result.finished


def run_replay(
    model: Path, log: Path, as_json: bool, engine: str, threads: int, q_json: Path | None
) -> bool:
    """Replay a log and say whether its checksums are those of the rebuilt weights."""
    done = replay(model, log, engine, threads, q_json)
    if done.torn:
        warn("the last line of the log is incomplete and was left out")
    elif not done.complete:
        warn("the log ends without the record that closes a run: it was killed, or the log was cut")
    if as_json:
        facts = {f.name: getattr(done, f.name) for f in dataclasses.fields(done)}
        del facts["store"]
        emit_json({"schema_version": SCHEMA_VERSION, "equal": done.equal, **facts})
        return done.equal
    emit(f"replayed {done.steps} steps; the weights' CRC is {done.crc:08x}")
    if done.mismatch is not None:
        emit(f"differs: after step {done.mismatch} the CRC is not the log's")
    elif done.compared == 0:
        emit("not compared: the log holds no CRC")
    else:
        rest = "" if done.complete else "; the rest of the run is not in the log"
        emit(f"equal to all checksums of the log ({done.compared}){rest}")
    return done.equal


def run_explain(request: TrainRequest) -> None:
    """Print what the request would do."""
    for line in explain_request(request):
        emit(line)


@contextmanager
def _display(limits: Limits) -> Iterator[Callable[[Progress], None]]:
    """A bar on a terminal, a line every few seconds in a pipe, only warnings with -q."""
    if verbosity() < 0:
        yield _warnings_only
    elif sys.stderr.isatty():
        with _bar(limits) as watch:
            yield watch
    else:
        yield _Lines(limits)


def _warnings_only(progress: Progress) -> None:
    for text in progress.warnings:
        warn(text)


class _Lines:
    """A plain line every PLAIN_INTERVAL seconds, counted from the first step."""

    def __init__(self, limits: Limits) -> None:
        self._meter = Meter(limits)
        self._last: float | None = None

    def __call__(self, progress: Progress) -> None:
        _warnings_only(progress)
        self._meter.see(progress)
        now = time.monotonic()
        if self._last is None:
            self._last = now
        if now - self._last >= PLAIN_INTERVAL:
            self._last = now
            say(self._meter.text(progress))


class Meter:
    """Smoothed loss, and the speed of the last SPEED_WINDOW seconds.

    The clock starts after the first step: what comes before it (kernels, a first evaluation, a
    measured learning rate) says nothing about how long the others take.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._seen: deque[tuple[float, int, float]] = deque()
        self.loss = 0.0
        self.share = 0.0

    def see(self, progress: Progress) -> None:
        if not self._seen:
            self.loss = progress.loss
        self.loss += SMOOTHING * (progress.loss - self.loss)
        limits = self._limits
        shares = [
            done / limit
            for done, limit in ((progress.step, limits.steps), (progress.forwards, limits.forwards))
            if limit
        ]
        self.share = max(shares, default=0.0)
        now = self._clock()
        self._seen.append((now, progress.forwards, self.share))
        while len(self._seen) > 2 and now - self._seen[1][0] >= SPEED_WINDOW:
            self._seen.popleft()

    @property
    def speed(self) -> float:
        """Image-forwards a second; 0 before the second step."""
        seconds, forwards, _ = self._passed()
        return forwards / seconds if seconds > 0 else 0.0

    def _passed(self) -> tuple[float, int, float]:
        """Seconds, image-forwards and share of the run between the ends of the window."""
        (start, before, share), (end, after, now) = self._seen[0], self._seen[-1]
        return end - start, after - before, now - share

    def text(self, progress: Progress) -> str:
        score = progress.score
        accuracy = f", accuracy {score.accuracy:.1%}" if score else ""
        return (
            f"step {progress.step}: loss {self.loss:.3f} bits{accuracy}, q {progress.q}, "
            f"{progress.forwards} image-forwards, {self.speed:.0f}/s, "
            f"{self.share:.0%} done{self._time_left()}"
        )

    def _time_left(self) -> str:
        seconds, _, share = self._passed()
        if share <= 0 or self.share >= 1 or seconds < 1:
            return ""
        return f", {seconds * (1 - self.share) / share:.0f} s left"


@contextmanager
def _bar(limits: Limits) -> Iterator[Callable[[Progress], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    columns = (BarColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    meter = Meter(limits)
    with RichProgress(*columns, console=Console(stderr=True)) as display:
        task = display.add_task("", total=1.0)

        def watch(progress: Progress) -> None:
            for text in progress.warnings:
                display.console.print(f"warning: {text}", markup=False)
            meter.see(progress)
            score = progress.score
            accuracy = f"acc {score.accuracy:.1%} " if score else ""
            display.update(
                task,
                completed=meter.share,
                description=f"loss {meter.loss:.3f} {accuracy}q {progress.q} "
                f"{progress.forwards} fwd {meter.speed:.0f}/s",
            )

        yield watch


def _tell(result: TrainResult) -> None:
    stopped = "" if result.finished else "stopped after "
    emit(
        f"{stopped}{result.step} steps, {result.forwards} image-forwards, {result.moved} codes "
        f"changed, weights' CRC {result.crc:08x}"
    )
    emit(f"accuracy before  {_accuracy(result.before)}")
    if result.after is not None:
        emit(f"accuracy after   {_accuracy(result.after)}")
    if result.clean_before is not None and result.clean_after is not None:
        emit(f"without shift:   {_accuracy(result.clean_before)} before")
        emit(f"                 {_accuracy(result.clean_after)} after")
    if result.recompiled is not None:
        emit(f"compiled anew:   {_accuracy(result.recompiled)}")
        emit(f"                 {_changes(result.recompiled_numbers)}")
    if result.before.saturated or (result.after and result.after.saturated):
        emit(f"saturated int16: {_saturated(result.before)} before")
        if result.after is not None:
            emit(f"                 {_saturated(result.after)} after")
    for name, path in result.files.items():
        emit(f"{name}: {path}")


def _changes(numbers: Mapping[str, tuple[str, ...]]) -> str:
    """Which numbers of the lowering a compilation of the trained file would change."""
    shown = [f"{node} ({', '.join(fields)})" for node, fields in list(numbers.items())[:3]]
    more = f" and {len(numbers) - 3} more" if len(numbers) > 3 else ""
    return f"with other numbers in {', '.join(shown)}{more}; `--lowering fresh` computes so"


def _saturated(score: Score) -> str:
    shown = [f"{count} in {node}" for node, count in list(score.saturated.items())[:3]]
    more = f" and {len(score.saturated) - 3} more operators" if len(score.saturated) > 3 else ""
    return (", ".join(shown) or "none") + more


def _warn_if_idle(result: TrainResult) -> None:
    """A run that ended and changed nothing is hardly what was wanted."""
    if not result.finished or result.moved:
        return
    if result.step == 0:
        least = result.forwards + result.next_forwards
        warn(
            f"no step was made: the first takes {result.next_forwards} image-forwards. Give "
            f"--max-forwards {least} or more, and some --steps"
        )
    else:
        warn(
            f"no weight changed in {result.step} steps: raise --lr (it was "
            f"{result.settings.lr}), or --max-forwards"
        )


def _resuming(request: TrainRequest) -> str:
    """The command that goes on with the run."""
    words = ["npusim", "train", str(request.model), "--out", str(request.out), "--resume"]
    if request.q_json is not None:
        words += ["--q-json", str(request.q_json)]
    return shlex.join(words) + _limits(request.limits)


def tell_next(request: TrainRequest, options: Sequence[click.Parameter]) -> None:
    """After the demonstration: the command that does the same with options of one's own.

    options: of the verb, by whose names the request is written down.
    """
    by_name = {option.name: option for option in options}
    plain = {name: getattr(request, name) for name in ("preset", "profile", "lowering")}
    data = dict(request.data)
    given = {**data.pop("overrides", {}), **data, **request.settings, **plain}
    words = ["npusim", "train", str(request.model)]
    for name, value in given.items():
        words += _option_words(by_name[name], value)
    out = request.out.with_name(f"{request.out.name}-again")
    command = shlex.join([*words, "--out", str(out)]) + _limits(request.limits)
    say(f"The same again, to put in data, shift and rate of your own:\n  {command}")


def _option_words(option: click.Parameter, value: Any) -> list[str]:
    """An option and its value as they are typed; nothing for None."""
    if value is None:
        return []
    if isinstance(value, bool):
        return (option.opts if value else option.secondary_opts)[:1]
    text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return [option.opts[0], text]


def _limits(limits: Limits) -> str:
    """The options that set the limits."""
    given = {"--steps": limits.steps, "--max-forwards": limits.forwards}
    return "".join(f" {name} {value}" for name, value in given.items() if value is not None)


def _accuracy(score: Score) -> Accuracy:
    return Accuracy(score.correct, score.total)


def _facts(result: TrainResult) -> dict[str, Any]:
    """The result as JSON."""

    def scored(score: Score | None) -> Any:
        if score is None:
            return None
        counts = {"loss_bits": score.loss, "saturated": dict(score.saturated)}
        return {**_accuracy(score).to_json(), **counts}

    return {
        "finished": result.finished,
        "steps": result.step,
        "forwards": result.forwards,
        "weights_crc": result.crc,
        "codes_changed": result.moved,
        "before": scored(result.before),
        "after": scored(result.after),
        "clean_before": scored(result.clean_before),
        "clean_after": scored(result.clean_after),
        "recompiled": scored(result.recompiled),
        "recompiled_numbers": dict(result.recompiled_numbers),
        "files": {name: str(path) for name, path in result.files.items()},
    }


def _write_run_info(request: TrainRequest, result: TrainResult) -> None:
    arguments = {
        **result.settings.to_json(),
        **result.data.to_json(),
        **dataclasses.asdict(request.limits),
        "profile": result.profile,
        "engine": request.engine,
        "threads": request.threads,
    }
    write_run_info(
        request.out / "run.json",
        "train",
        arguments,
        [request.model, *([request.q_json] if request.q_json else [])],
        list(result.files.values()),
        result=_facts(result),
    )
