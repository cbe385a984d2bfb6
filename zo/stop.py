"""Ctrl-C and SIGTERM end a run at the next step's boundary."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class StopRequest:
    """Context manager that turns SIGINT and SIGTERM into an orderly end.

    Until ``defer`` is called, a signal interrupts at once (KeyboardInterrupt): nothing is on disk
    that had to be finished. From then on the first signal is a request only. A second SIGINT
    interrupts at once; the last checkpoint on disk is then what can be resumed. Outside the main
    thread signals are left alone.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._deferring = False
        self._previous: dict[int, Any] = {}

    @property
    def requested(self) -> bool:
        return self.signal is not None

    def defer(self) -> None:
        """From here on a signal waits for the end of a step.

        Raises KeyboardInterrupt where one has come that a library kept to itself.
        """
        if self.requested:
            raise KeyboardInterrupt
        self._deferring = True

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        again = self.requested
        self.signal = number
        if not self._deferring or (again and number == signal.SIGINT):
            raise KeyboardInterrupt
