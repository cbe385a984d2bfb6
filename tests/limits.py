"""Limits that stand for a full disk."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """RLIMIT_FSIZE: writing beyond ``size`` bytes of any file fails, also for root.

    A context and no fixture: while a fixture is open pytest writes its own progress, and where that
    goes to a file larger than the limit, the whole run would end there without a word.
    """
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
