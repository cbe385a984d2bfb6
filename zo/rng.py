"""The counter-based random numbers that decide every trained weight: Philox4x32-10.

Stateless and with random access: the number a weight gets depends on the seed and on what the
weight *is* (its tensor, output channel and position), never on the order in which weights are
visited, how they are packed, or how many threads there are. NumPy's own Philox is 4x64, which is
a different stream.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011) and
its Random123 library. Everything here is vectorised NumPy and is the definition that the kernels
of npusim.zo.kernels are compared with.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from npusim.errors import NumericsError

U32 = npt.NDArray[np.uint32]
Key = tuple[int, int]

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_INCREMENTS = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
MASK32 = 0xFFFFFFFF

POSITION_BITS = 14
CHANNEL_BITS = 18
MAX_TENSORS = 1 << 16


class Purpose(IntEnum):
    """What a random number is for; stands above the tensor's id in the counter.

    MASK draws a sparse mask as DITHER draws dither; LAYER chooses a direction's layer (LayerQ).
    """

    SIGNS = 0
    DITHER = 1
    BATCH_ORDER = 2
    GAUSSIAN = 3
    MASK = 4
    LAYER = 5


#: log2 of how many consecutive weights one counter serves.
BLOCK_BITS = {Purpose.SIGNS: 7, Purpose.DITHER: 3, Purpose.GAUSSIAN: 2, Purpose.MASK: 3}

#: The epoch number that stands for "split into training and validation", which no epoch reaches.
SPLIT_EPOCH = MASK32


def key_of(seed: int) -> Key:
    """(low, high) 32-bit words of a 64-bit seed.

    Raises NumericsError where the seed has more than 64 bits or is negative.
    """
    if not 0 <= seed < 1 << 64:
        raise NumericsError("the seed is not a 64-bit number", got=seed, wanted="0 .. 2^64-1")
    return seed & MASK32, seed >> 32


def philox4x32(
    counter: tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike, npt.ArrayLike], key: Key
) -> tuple[U32, U32, U32, U32]:
    """Ten rounds on every counter.

    Args:
        counter: four words, each an array of 32-bit values (or a scalar); they broadcast.
        key: two 32-bit words.

    Returns:
        Four uint32 arrays of the broadcast shape.
    """
    c0, c1, c2, c3 = (np.asarray(word, np.uint64) for word in counter)
    k0, k1 = key
    mask, half = np.uint64(MASK32), np.uint64(32)
    for _ in range(ROUNDS):
        low = np.uint64(MULTIPLIERS[0]) * c0
        high = np.uint64(MULTIPLIERS[1]) * c2
        c0, c1 = (high >> half) ^ c1 ^ np.uint64(k0), high & mask
        c2, c3 = (low >> half) ^ c3 ^ np.uint64(k1), low & mask
        k0 = (k0 + KEY_INCREMENTS[0]) & MASK32
        k1 = (k1 + KEY_INCREMENTS[1]) & MASK32
    w0, w1, w2, w3 = (w.astype(np.uint32) for w in np.broadcast_arrays(c0, c1, c2, c3))
    return w0, w1, w2, w3


def check_address(shape: tuple[int, int], tensor: int, purpose: Purpose, where: str = "") -> None:
    """Refuse a tensor that does not fit into the counter's fields.

    Args:
        shape: (output channels, weights an output channel).
        tensor: its id.

    Raises NumericsError.
    """
    channels, positions = shape
    blocks = (positions - 1) >> BLOCK_BITS[purpose]
    if channels > 1 << CHANNEL_BITS or blocks >= 1 << POSITION_BITS:
        limit = 1 << (POSITION_BITS + BLOCK_BITS[purpose])
        raise NumericsError(
            "the tensor is too large for the random numbers' address",
            where=where,
            got=f"{channels} x {positions}",
            wanted=f"at most {1 << CHANNEL_BITS} x {limit}",
        )
    if not 0 <= tensor < MAX_TENSORS:
        raise NumericsError(
            "the network has too many weight tensors for the random numbers' address",
            where=where,
            got=f"tensor id {tensor}",
            wanted=f"below {MAX_TENSORS}",
        )


def sign_bits(
    channels: npt.ArrayLike, positions: npt.ArrayLike, tensor: int, step: int, k: int, key: Key
) -> npt.NDArray[np.uint32]:
    """The sign bit of weights given by (output channel, position), in any order and packing.

    Args:
        channels, positions: integer arrays that broadcast: o and p of zo.md's addressing.
        tensor: the tensor's id. step: training step. k: direction within the step.

    Returns:
        uint32 array of 0 (sign +1) and 1 (sign -1).
    """
    o, p = np.broadcast_arrays(np.asarray(channels, np.int64), np.asarray(positions, np.int64))
    first = (o << POSITION_BITS) | (p >> BLOCK_BITS[Purpose.SIGNS])
    words = philox4x32((first, tensor | Purpose.SIGNS << 16, step, k), key)
    word = np.choose((p >> 5) & 3, words)
    return (word >> (p & 31).astype(np.uint32)) & np.uint32(1)


def signs(
    rows: range, positions: int, tensor: int, step: int, k: int, key: Key
) -> npt.NDArray[np.int64]:
    """+1 and -1 for a block of output channels of one tensor.

    Returns:
        int64 [len(rows), positions].
    """
    o = np.arange(rows.start, rows.stop, dtype=np.int64)[:, None]
    blocks = -(-positions >> BLOCK_BITS[Purpose.SIGNS])
    block = np.arange(blocks, dtype=np.int64)[None, :]
    words = philox4x32((o << POSITION_BITS | block, tensor | Purpose.SIGNS << 16, step, k), key)
    lanes = np.stack(words, axis=-1)[..., None] >> np.arange(32, dtype=np.uint32)
    bits = (lanes & np.uint32(1)).reshape(len(rows), blocks * 128)[:, :positions]
    return 1 - 2 * bits.astype(np.int64)


def gaussians(
    rows: range, positions: int, tensor: int, step: int, k: int, key: Key
) -> npt.NDArray[np.int64]:
    """Integer Gaussians, popcount(32 bits) - 16: mean 0, variance 8, -16..16.

    Returns:
        int64 [len(rows), positions].
    """
    words = _row_words(Purpose.GAUSSIAN, rows, positions, tensor, step, k, key)
    counts = np.zeros(words.shape, np.int64)
    for bit in range(32):
        counts += (words >> np.uint32(bit)) & np.uint32(1)
    return counts.reshape(len(rows), -1)[:, :positions] - 16


def directions(
    purpose: Purpose, rows: range, positions: int, tensor: int, step: int, k: int, key: Key
) -> npt.NDArray[np.int64]:
    """``signs`` or ``gaussians``, as the purpose says."""
    draw = gaussians if purpose == Purpose.GAUSSIAN else signs
    return draw(rows, positions, tensor, step, k, key)


def halves(
    purpose: Purpose, rows: range, positions: int, tensor: int, step: int, key: Key
) -> npt.NDArray[np.int64]:
    """Sixteen random bits a weight, for purposes DITHER and MASK.

    Returns:
        int64 [len(rows), positions], 0..65535; an even position has the word's low half.
    """
    words = _row_words(purpose, rows, positions, tensor, step, 0, key)
    pairs = np.stack([words & np.uint32(0xFFFF), words >> np.uint32(16)], axis=-1)
    return pairs.reshape(len(rows), -1)[:, :positions].astype(np.int64)


def _row_words(
    purpose: Purpose, rows: range, positions: int, tensor: int, step: int, k: int, key: Key
) -> U32:
    """All four words of every counter that serves the rows: uint32 [rows, counters, 4]."""
    o = np.arange(rows.start, rows.stop, dtype=np.int64)[:, None]
    block = np.arange(-(-positions >> BLOCK_BITS[purpose]), dtype=np.int64)[None, :]
    counter = (o << POSITION_BITS | block, tensor | purpose << 16, step, k)
    return np.stack(philox4x32(counter, key), axis=-1)


def batch_order(samples: int, epoch: int, key: Key) -> npt.NDArray[np.int64]:
    """The order in which an epoch visits its samples.

    Args:
        samples: how many there are.
        epoch: its number; SPLIT_EPOCH gives the order that splits off a validation set.

    Returns:
        int64 [samples], a permutation: samples sorted by (word 0, word 1, own number).
    """
    j = np.arange(samples, dtype=np.int64)
    w0, w1, _, _ = philox4x32((j, int(Purpose.BATCH_ORDER) << 16, epoch, 0), key)
    keys = (w0.astype(np.uint64) << np.uint64(32)) | w1.astype(np.uint64)
    return np.argsort(keys, kind="stable").astype(np.int64)
