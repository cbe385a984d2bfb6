"""The folder of a run: what is replaced and when, and one training at a time."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from digits_task import MODEL, ignore, request

from npusim.cli import main
from npusim.errors import CheckpointError, UsageError
from npusim.zo import run as run_module
from npusim.zo.checkpoint import load_checkpoint
from npusim.zo.lock import LOCK_NAME, FolderLock
from npusim.zo.loop import Progress
from npusim.zo.run import TrainResult, train
from npusim.zo.stop import StopRequest

Train = Callable[..., TrainResult]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """RLIMIT_FSIZE stands for the full disk: no file may grow beyond it."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("name", ["trained.onnx", "checkpoint.h5", "log.jsonl", "run.json"])
@pytest.mark.parametrize("linked", ["", "file", "target"])
def test_a_run_does_not_replace_the_model_it_starts_from(
    name: str, linked: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    given = out / name
    if linked == "target":
        given.symlink_to(shutil.copy(MODEL, tmp_path / "model.onnx"))
    else:
        shutil.copy(MODEL, given)
    if linked == "file":
        given = tmp_path / "link.onnx"
        given.symlink_to(out / name)
    before = contents(out)
    for changes in ({"overwrite": True}, {"resume": True}):
        with pytest.raises(UsageError, match="would replace"):
            train(request(out, model=given, **changes), ignore)
    assert contents(out) == before


@pytest.mark.parametrize("limit", [100, 10_000])
def test_a_full_disk_at_the_start_leaves_the_earlier_run(
    limit: int, train_digits: Train, tmp_path: Path
) -> None:
    """Neither the log (100 bytes) nor the first checkpoint (10 000) has room."""
    train_digits("run", steps=2)
    out = tmp_path / "run"
    before = contents(out)
    with files_no_larger_than(limit), pytest.raises(CheckpointError, match="as it was"):
        train(request(out, seed=1, overwrite=True), ignore)
    assert contents(out) == before
    with files_no_larger_than(limit), pytest.raises(CheckpointError, match="start it again"):
        train(request(tmp_path / "new", steps=2), ignore)
    assert not (tmp_path / "new").exists()
    assert train_digits("new", steps=2).step == 2


def test_an_interrupted_start_leaves_the_earlier_run(
    train_digits: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_digits("run", steps=2)
    before = contents(tmp_path / "run")

    def interrupted(run: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(run_module, "log_score", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(request(tmp_path / "run", overwrite=True), ignore)
    assert contents(tmp_path / "run") == before


def test_the_earlier_result_goes_with_the_first_checkpoint(
    train_digits: Train, tmp_path: Path
) -> None:
    train_digits("run", steps=2)
    out = tmp_path / "run"
    (out / "run.json").write_text("{}")

    def watch(progress: Progress) -> None:
        assert {path.name for path in out.iterdir()} == {"log.jsonl", "checkpoint.h5", LOCK_NAME}

    train(request(out, steps=1, overwrite=True), watch)
    assert load_checkpoint(out / "checkpoint.h5").state.step == 1


def test_a_log_without_a_checkpoint_can_only_be_replaced(
    train_digits: Train, tmp_path: Path
) -> None:
    train_digits("run", steps=2).files["checkpoint"].unlink()
    with pytest.raises(UsageError, match="without its checkpoint") as caught:
        train_digits("run", steps=2)
    assert "--resume" not in str(caught.value)
    with pytest.raises(CheckpointError, match="no checkpoint"):
        train_digits("run", resume=True)
    assert train_digits("run", steps=2, overwrite=True).step == 2


@pytest.mark.parametrize("changes", [{"overwrite": True}, {"resume": True}])
def test_one_training_at_a_time(
    changes: dict[str, bool], train_digits: Train, tmp_path: Path
) -> None:
    whole = train_digits("whole", steps=3)
    train_digits("run", steps=1)
    out, refused = tmp_path / "run", []

    def watch(progress: Progress) -> None:
        with pytest.raises(UsageError, match="another training") as caught:
            train(request(out, steps=9, **changes), ignore)
        refused.append(caught.value.exit_code)

    result = train(request(out, steps=3, resume=True), watch)
    assert refused == [2, 2]
    assert result.files["log"].read_bytes() == whole.files["log"].read_bytes()
    assert not (out / LOCK_NAME).exists()


def test_a_lock_is_free_when_its_process_is_dead(tmp_path: Path) -> None:
    (tmp_path / LOCK_NAME).touch()
    with FolderLock(tmp_path) as first, FolderLock(tmp_path) as second:
        first.take()
        first.take()
        with pytest.raises(UsageError):
            second.take()
    with FolderLock(tmp_path / "a" / "b") as lock:
        assert not (tmp_path / "a").exists()
        lock.take()
        assert (tmp_path / "a" / "b" / LOCK_NAME).exists()
    assert contents(tmp_path) == {}


def test_a_trained_file_without_room_can_be_exported(
    train_digits: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train_digits("whole", steps=3)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(run_module, "export", full)
        with pytest.raises(CheckpointError, match="No space left on device") as caught:
            train_digits("run", steps=3)
    text = str(caught.value)
    assert "checkpoint is safe" in text
    assert main(text.split("npusim ", 1)[1].split()) == 0
    trained = tmp_path / "run" / "trained.onnx"
    assert trained.read_bytes() == whole.files["trained"].read_bytes()


def test_a_signal_before_a_run_begins_interrupts_at_once(tmp_path: Path) -> None:
    def load(sentence: str) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    asked = request(tmp_path / "run", lr="auto")  # which tells its rate before anything is written
    with pytest.raises(KeyboardInterrupt):
        train(asked, ignore, load)
    assert not (tmp_path / "run").exists()
    with StopRequest() as stop:
        stop.signal = signal.SIGTERM
        with pytest.raises(KeyboardInterrupt):
            stop.defer()


@pytest.mark.long
def test_sigterm_while_loading_ends_the_command_with_130(tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = [sys.executable, "-m", "npusim.cli", "train", str(MODEL), "--out", str(out)]
    process = subprocess.Popen([*words, "--data", "digits"], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    process.stderr.readline()  # "preparing"
    time.sleep(0.05)
    process.terminate()
    text = process.communicate(timeout=120)[1]
    assert process.returncode == 130
    assert "Interrupted." in text
    assert not out.exists()
