"""Signals, kills and full disks: what is on disk afterwards can always be resumed."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from digits_task import MODEL, ignore, request

from npusim.errors import CheckpointError
from npusim.zo.checkpoint import load_checkpoint
from npusim.zo.loop import Progress
from npusim.zo.run import TrainResult, train

Train = Callable[..., TrainResult]
KILLS = 20
STEPS = 300


def command(out: Path, *extra: str) -> list[str]:
    """npusim train on digits, as a process of its own."""
    return [
        sys.executable, "-m", "npusim.cli", "train", str(MODEL), "--out", str(out),
        "--steps", str(STEPS), "--checkpoint-every", "7", "--threads", "1", *extra,
    ]  # fmt: skip


FRESH = ("--data", "digits", "--limit", "200", "--batch", "5", "--lr", "0.5", "--q", "fixed:2")


def stop_record(out: Path) -> dict[str, object]:
    last = (out / "log.jsonl").read_bytes().splitlines()[-1]
    record: dict[str, object] = json.loads(last)
    return record


@pytest.mark.long
def test_killed_at_random_moments_the_result_is_the_same(tmp_path: Path) -> None:
    """SIGKILL at 20 random moments; at last the weights and the log are the uninterrupted run's."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    start = time.monotonic()
    subprocess.run(command(whole, *FRESH), check=True, capture_output=True)
    duration = time.monotonic() - start
    rng, kills = random.Random(7), 0
    while kills < KILLS:
        begun = (parts / "checkpoint.h5").exists()
        extra = ("--resume",) if begun else (*FRESH, "--overwrite")
        process = subprocess.Popen(
            command(parts, *extra), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            process.wait(timeout=rng.uniform(0.0, 1.2 * duration))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            kills += 1
            continue
        # It ended before it could be killed: start over, as a new run.
        assert process.returncode == 0
        for name in ("checkpoint.h5", "trained.onnx"):
            (parts / name).unlink()
    if (parts / "checkpoint.h5").exists():
        subprocess.run(command(parts, "--resume"), check=True, capture_output=True)
    else:
        subprocess.run(command(parts, *FRESH, "--overwrite"), check=True, capture_output=True)
    for name in ("log.jsonl", "trained.onnx"):
        assert (parts / name).read_bytes() == (whole / name).read_bytes()
    assert not list(parts.glob(".*.part*")), "left-over temporary files"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_at_a_step_and_can_be_resumed(
    number: signal.Signals, train_digits: Train, tmp_path: Path
) -> None:
    whole = train_digits("whole", steps=8)

    def watch(progress: Progress) -> None:
        if progress.step == 3:
            os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    stopped = train(request(tmp_path / "parts", steps=8), watch)
    assert signal.getsignal(number) is before
    assert (stopped.finished, stopped.step, stopped.after) == (False, 3, None)
    assert stop_record(tmp_path / "parts")["reason"] == "interrupted"
    assert not (tmp_path / "parts" / "trained.onnx").exists()
    resumed = train_digits("parts", steps=8, resume=True)
    assert resumed.files["log"].read_bytes() == whole.files["log"].read_bytes()


@pytest.mark.long
def test_sigterm_ends_the_command_with_130_and_says_how_to_go_on(tmp_path: Path) -> None:
    out = tmp_path / "run"
    endless = [*command(out, *FRESH), "--steps", "1000000"]
    process = subprocess.Popen(endless, stderr=subprocess.PIPE, text=True)
    while not (out / "checkpoint.h5").exists() and process.poll() is None:
        time.sleep(0.05)
    process.terminate()
    text = process.communicate(timeout=120)[1]
    assert process.returncode == 130
    assert f"--out {out} --resume --steps 1000000" in text


def test_a_second_ctrl_c_interrupts_at_once(tmp_path: Path) -> None:
    def watch(progress: Progress) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(request(tmp_path / "run", steps=8), watch)
    assert load_checkpoint(tmp_path / "run" / "checkpoint.h5").state.step == 0


def test_a_full_disk_leaves_the_old_checkpoint(tmp_path: Path, train_digits: Train) -> None:
    """RLIMIT_FSIZE stands for the full disk: no file may grow beyond it."""
    whole = train_digits("whole", steps=9)
    out = tmp_path / "parts"
    size = 0

    def watch(progress: Progress) -> None:
        nonlocal size
        if progress.step == 5:
            size = (out / "checkpoint.h5").stat().st_size
            hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            resource.setrlimit(resource.RLIMIT_FSIZE, (size - 1, hard))

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with pytest.raises(CheckpointError, match=r"cannot be written: File too large"):
            train(request(out, steps=9), watch)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert load_checkpoint(out / "checkpoint.h5").state.step == 4
    assert not list(out.glob(".*.part*"))
    resumed = train_digits("parts", steps=9, resume=True)
    assert resumed.files["log"].read_bytes() == whole.files["log"].read_bytes()


def test_a_log_that_cannot_grow_stops_the_run_with_its_name(
    tmp_path: Path, train_digits: Train
) -> None:
    train_digits("run", steps=2)
    out = tmp_path / "run"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    checkpoint, log = (out / "checkpoint.h5").stat().st_size, (out / "log.jsonl").stat().st_size
    steps = 2 + max(0, checkpoint - log) // 200 + 20  # until the log is the larger file

    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (max(checkpoint, log) + 100, limits[1]))
        with pytest.raises(CheckpointError, match="log") as caught:
            train(request(out, steps=steps + 50, resume=True, checkpoint_every=1000), ignore)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "--resume" in str(caught.value)
    assert train_digits("run", steps=4, resume=True).step == 4
