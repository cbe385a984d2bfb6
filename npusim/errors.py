"""Every error a user can cause, each with what was wrong, where, and what to do next.

The command line prints ``str(error)`` and exits with ``error.exit_code``; the Python API raises
the same objects. ``assert`` is kept for what cannot happen.
"""

from __future__ import annotations


class NpusimError(Exception):
    """Base of all errors of npusim.

    Args:
        problem: one sentence that says what is wrong.
        where: the node, tensor, file or option it is about.
        got: what was found (shown with ``str``).
        wanted: what would have been accepted (shown with ``str``).
        hint: what the user can do next, a whole sentence.
    """

    exit_code = 3

    def __init__(
        self,
        problem: str,
        *,
        where: str = "",
        got: object = None,
        wanted: object = None,
        hint: str = "",
    ) -> None:
        self.problem = problem
        self.where = where
        self.got = got
        self.wanted = wanted
        self.hint = hint
        super().__init__(self._text())

    def _text(self) -> str:
        text = f"{self.where}: {self.problem}" if self.where else self.problem
        details = []
        if self.got is not None:
            details.append(f"got {self.got}")
        if self.wanted is not None:
            details.append(f"wanted {self.wanted}")
        if details:
            text += f" ({', '.join(details)})"
        if not text.endswith((".", "!", "?")):
            text += "."
        return f"{text} {self.hint}" if self.hint else text


class ModelError(NpusimError):
    """The network cannot be read or cannot be run exactly."""


class UnsupportedOp(ModelError):
    """An operator, an attribute of it, or an opset that nothing here can run."""


class BadShape(ModelError):
    """A tensor's shape or type does not fit the operator or the model's input."""


class BadQuantization(ModelError):
    """Scales, zero points or the Q/DQ structure make no integer operator."""


class NumericsError(NpusimError):
    """An exact computation would overflow the width it is done in, or a loss is not a number."""

    exit_code = 1


class DataError(NpusimError):
    """A data set, an image or a label that cannot be used."""


class DumpError(NpusimError):
    """A golden file or a board's dump that cannot be read."""


class CheckpointError(NpusimError):
    """A checkpoint or training log that cannot be resumed from or written."""


class BoardError(NpusimError):
    """The link to a board failed."""

    exit_code = 4


class UsageError(NpusimError):
    """Options that contradict one another."""

    exit_code = 2
