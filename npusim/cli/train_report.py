"""What npusim train shows while it runs and when it ends."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from npusim.cli.terminal import PLAIN_INTERVAL, emit_json, say, verbosity, warn
from npusim.evaluation import Accuracy
from npusim.runinfo import write_run_info
from npusim.zo.loop import Limits, Progress, Score
from npusim.zo.request import TrainRequest, explain_request
from npusim.zo.run import TrainResult, replay, train

SCHEMA_VERSION = 1
SMOOTHING = 0.02


def run_training(request: TrainRequest, as_json: bool) -> bool:
    """Train with a progress display; says what came of it. True unless it was interrupted."""
    with _display(request.limits) as watch:
        result = train(request, watch, lambda sentence: say(f"note: {sentence}"))
    _write_run_info(request, result)
    if as_json:
        emit_json({"schema_version": SCHEMA_VERSION, **_facts(result)})
    _tell(request, result)
    return result.finished


def run_replay(model: Path, log: Path, profile: str | None, engine: str, threads: int) -> bool:
    """Replay a log and say whether its checksums are those of the rebuilt weights."""
    done = replay(model, log, profile, engine, threads)
    say(f"replayed {done.steps} steps; the weights' CRC is {done.crc:08x}")
    if done.mismatch is not None:
        warn(f"after step {done.mismatch} the CRC differs from the log's")
    elif done.compared == 0:
        warn("the log holds no CRC to compare with")
    else:
        say(f"equal to all {done.compared} checksums of the log")
    return done.mismatch is None and done.compared > 0


def run_explain(request: TrainRequest) -> None:
    """Print what the request would do."""
    for line in explain_request(request):
        click.echo(line)


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
    """A plain line every PLAIN_INTERVAL seconds."""

    def __init__(self, limits: Limits) -> None:
        self._meter = _Meter(limits)
        self._last = time.monotonic()

    def __call__(self, progress: Progress) -> None:
        _warnings_only(progress)
        self._meter.see(progress)
        if time.monotonic() - self._last >= PLAIN_INTERVAL:
            self._last = time.monotonic()
            say(self._meter.text(progress))


class _Meter:
    """Smoothed loss, speed and share done."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._start = time.monotonic()
        self._first: int | None = None
        self.loss = 0.0
        self.share = 0.0

    def see(self, progress: Progress) -> None:
        if self._first is None:
            self._first = progress.forwards
            self.loss = progress.loss
        self.loss += SMOOTHING * (progress.loss - self.loss)
        limits = self._limits
        shares = [
            done / limit
            for done, limit in ((progress.step, limits.steps), (progress.forwards, limits.forwards))
            if limit
        ]
        self.share = max(shares, default=0.0)

    def speed(self, progress: Progress) -> float:
        """Image-forwards a second since this call of npusim began."""
        seconds = max(time.monotonic() - self._start, 1e-9)
        return (progress.forwards - (self._first or 0)) / seconds

    def text(self, progress: Progress) -> str:
        score = progress.score
        accuracy = f", accuracy {score.accuracy:.1%}" if score else ""
        return (
            f"step {progress.step}: loss {self.loss:.3f} bits{accuracy}, q {progress.q}, "
            f"{progress.forwards} image-forwards, {self.speed(progress):.0f}/s, "
            f"{self.share:.0%} done{self._time_left()}"
        )

    def _time_left(self) -> str:
        elapsed = time.monotonic() - self._start
        if not 0 < self.share < 1 or elapsed < 1:
            return ""
        return f", {elapsed * (1 - self.share) / self.share:.0f} s left"


@contextmanager
def _bar(limits: Limits) -> Iterator[Callable[[Progress], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    columns = (BarColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    meter = _Meter(limits)
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
                f"{progress.forwards} fwd {meter.speed(progress):.0f}/s",
            )

        yield watch


def _tell(request: TrainRequest, result: TrainResult) -> None:
    if not result.finished:
        say(
            f"Stopped after step {result.step}. Go on with:\n"
            f"  npusim train {request.model} --out {request.out} --resume{_limits(request.limits)}"
        )
        return
    say(f"{result.step} steps, {result.forwards} image-forwards, weights' CRC {result.crc:08x}")
    say(f"accuracy before  {_accuracy(result.before)}")
    if result.after is not None:
        say(f"accuracy after   {_accuracy(result.after)}")
    if result.clean_before is not None and result.clean_after is not None:
        say(f"without shift:   {_accuracy(result.clean_before)} before")
        say(f"                 {_accuracy(result.clean_after)} after")
    for name, path in result.files.items():
        say(f"{name}: {path}")


def _limits(limits: Limits) -> str:
    """The options that set the limits."""
    given = {"--steps": limits.steps, "--max-forwards": limits.forwards}
    return "".join(f" {name} {value}" for name, value in given.items() if value is not None)


def _accuracy(score: Score) -> Accuracy:
    return Accuracy(score.correct, score.total)


def _facts(result: TrainResult) -> dict[str, Any]:
    """The result as JSON."""

    def scored(score: Score | None) -> Any:
        return score and {**_accuracy(score).to_json(), "loss_bits": score.loss}

    return {
        "finished": result.finished,
        "steps": result.step,
        "forwards": result.forwards,
        "weights_crc": result.crc,
        "before": scored(result.before),
        "after": scored(result.after),
        "clean_before": scored(result.clean_before),
        "clean_after": scored(result.clean_after),
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
        [request.model],
        list(result.files.values()),
        result=_facts(result),
    )
