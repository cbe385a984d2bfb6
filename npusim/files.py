"""Files that are either written whole or left as they were, and files that are safe to read."""

from __future__ import annotations

import errno
import json
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which takes the place of ``path`` once the block has ended well.

    The bytes go to a temporary file in the same folder, which is flushed to the disk and renamed;
    then the folder is flushed. Where the block raises, or the disk is full, ``path`` is as before.

    Raises:
        OSError: the file cannot be written; it names ``path``, not the temporary file.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    try:
        handle, temporary = tempfile.mkstemp(
            prefix=f".{path.name}.", suffix=".part", dir=path.parent
        )
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)  # mkstemp makes files that only their owner may read
        os.replace(temporary, path)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError) and error.filename in (None, temporary):
            reason = error.strerror or f"cannot be written whole ({error})"  # NumPy's have none
            raise OSError(error.errno, reason, str(path)) from error
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def check_regular(path: Path) -> None:
    """Raises OSError, naming the file, where it is none: reading a pipe would wait for ever."""
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))


def read_json(path: Path) -> Any:
    """What a JSON file holds.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no JSON, or nested too deeply.
    """
    check_regular(path)
    return parse_json(path.read_text("utf-8"))


def parse_json(text: str) -> Any:
    """What a JSON text holds. Raises ValueError for other text, and for one nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
