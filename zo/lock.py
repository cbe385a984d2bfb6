"""One training at a time in a folder."""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import Self

from npusim.errors import UsageError

LOCK_NAME = ".lock"
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)


class FolderLock:
    """Holds a folder against other trainings, from ``take`` to the end of the context.

    The system lets go of the lock when a process dies. A file system that knows no locks is used
    without.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._handle: int | None = None
        self._made: list[Path] = []

    def take(self) -> None:
        """Take the lock, unless it is held here already; makes the folder where there is none.

        Raises UsageError where another process holds it.
        """
        if self._handle is not None:
            return
        folder = self._folder
        self._made = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        self._handle = _acquired(folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Let go; folders that were made here and are still empty are removed."""
        if self._handle is not None:
            with suppress(OSError):
                os.unlink(self._folder / LOCK_NAME)
            os.close(self._handle)
            self._handle = None
        with suppress(OSError):
            for path in self._made:
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
