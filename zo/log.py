"""The training log: JSON lines that, with the model, rebuild every weight of the run.

Line 0 is the header: model CRC, settings, lowering, trained tensors, the update's constants. Then
one record a step, with the exact integers D_k, and between them records of evaluations and
warnings. Nothing in it depends on time, machine, threads or interruptions, so that a resumed run
writes the same bytes as one that was never stopped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Self

from npusim.errors import CheckpointError

SCHEMA_VERSION = 3
NOT_BEGUN = (
    "The run had not begun and left nothing; a run that it was to replace is as it was. Make room "
    "and start it again."
)


class LogWriter:
    """Appends records; ``size`` is the log's length in bytes so far. Use as a context manager.

    staged: a file that ``publish`` has yet to put in the place of ``path``.
    """

    def __init__(self, path: Path, file: BinaryIO, size: int, staged: Path | None = None) -> None:
        self._path = path
        self._file = file
        self._staged = staged
        self.size = size

    @classmethod
    def create(cls, path: Path) -> Self:
        """An empty log, which takes the place of an old one when it is published.

        Where it never is, the old one stays, and nothing of the new one.
        """
        staged = path.with_name(f".{path.name}.new.part")
        return cls(path, staged.open("wb"), 0, staged)

    def publish(self) -> None:
        """Give a new log its name; nothing where it has it.

        Raises OSError.
        """
        if self._staged is not None:
            os.replace(self._staged, self._path)
            self._staged = None

    @classmethod
    def reopen(cls, path: Path, size: int) -> Self:
        """Continue a log at the length that a checkpoint holds; what stands behind is dropped.

        Raises CheckpointError where the log is missing or shorter.
        """
        found = path.stat().st_size if path.exists() else 0
        if found < size:
            raise CheckpointError(
                "the log is shorter than its checkpoint says",
                where=str(path),
                got=f"{found} bytes",
                wanted=f"at least {size}",
                hint="Both files belong together; start a new run if one is lost.",
            )
        file = path.open("r+b")
        file.truncate(size)
        file.seek(size)
        return cls(path, file, size)

    def write(self, record: Mapping[str, Any]) -> None:
        """Append one record.

        Raises CheckpointError where it cannot be written (a full disk).
        """
        line = (json.dumps(record, separators=(",", ":"), allow_nan=False) + "\n").encode()
        try:
            self._file.write(line)
        except OSError as error:
            raise self._failed(error) from error
        self.size += len(line)

    def sync(self) -> None:
        """Make everything written so far survive a crash; before a checkpoint names its size."""
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._failed(error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close the file; where writing has failed already, that error is the one to tell."""
        try:
            self._file.close()
        except OSError as error:
            if kind is None:
                raise self._failed(error) from error
        finally:
            if self._staged is not None:
                with suppress(OSError):
                    self._staged.unlink()

    def _failed(self, error: OSError) -> CheckpointError:
        return CheckpointError(
            f"the training log cannot be written: {error.strerror}",
            where=str(self._path),
            hint="Make room and continue with --resume from the last checkpoint."
            if self._staged is None
            else NOT_BEGUN,
        )


def ends_in_mid_line(path: Path) -> bool:
    """Whether the last line lacks its end: the log was cut, or is being written."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        return size > 0 and file.read(1) != b"\n"


def read_log(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a log, the header first; an unfinished last line is left out.

    Whether there is one says ``ends_in_mid_line``; a whole log ends with a record of type "stop".

    Raises CheckpointError where the file is no log or a line is damaged.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise CheckpointError(
            f"the log cannot be read: {error.strerror}", where=str(path)
        ) from error
    with file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            yield _record(line, f"{path}:{number}", first=number == 1)


def _record(line: bytes, where: str, first: bool) -> dict[str, Any]:
    try:
        record = json.loads(line)
        kind = record["type"]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise CheckpointError("this line of the log is damaged", where=where) from error
    if (kind == "header") != first:
        raise CheckpointError(
            "this is not a training log of npusim",
            where=where,
            got=f"a record of type {kind}",
            wanted="the header first, and once",
        )
    if first and record.get("schema_version") != SCHEMA_VERSION:
        raise CheckpointError(
            "the log has another format",
            where=where,
            got=f"schema {record.get('schema_version')}",
            wanted=f"schema {SCHEMA_VERSION}",
        )
    assert isinstance(record, dict)
    return record
