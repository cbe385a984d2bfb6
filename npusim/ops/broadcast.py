"""NumPy broadcasting of shapes whose first axis may be the batch."""

from __future__ import annotations

from itertools import zip_longest

Shape = tuple[int | None, ...]


def broadcast_shape(a: Shape, b: Shape) -> Shape:
    """The common shape; None (the batch) wins over 1. Raises ValueError where there is none."""
    dims: list[int | None] = []
    for m, n in zip_longest(reversed(a), reversed(b), fillvalue=1):
        if m != n and 1 not in (m, n):
            raise ValueError(f"shapes {a} and {b} do not broadcast")
        dims.append(n if m == 1 else m)
    return tuple(reversed(dims))
