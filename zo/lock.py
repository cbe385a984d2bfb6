"""One training at a time in a folder."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from npusim.errors import UsageError

LOCK_NAME = ".lock"
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder, which is made where there is none, against other trainings.

    The system lets go of the lock when a process dies. What was made here and is still empty in
    the end is removed again. A file system that knows no locks is used without.

    Raises UsageError where another process holds it.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        handle = _acquired(folder)
        try:
            yield
        finally:
            with suppress(OSError):
                os.unlink(folder / LOCK_NAME)
            os.close(handle)
    finally:
        with suppress(OSError):
            for path in made:
                path.rmdir()


def _acquired(folder: Path) -> int:
    """The open lock file, which is still the one of its name: its last holder removed it."""
    path = folder / LOCK_NAME
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.exists() and os.path.samestat(os.fstat(handle), path.stat()):
                return handle
        except BlockingIOError:
            os.close(handle)
            raise UsageError(
                "another training is running in this folder",
                where=str(folder),
                hint="Wait until it has ended, or choose another --out.",
            ) from None
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return handle
            os.close(handle)
            raise
        os.close(handle)
