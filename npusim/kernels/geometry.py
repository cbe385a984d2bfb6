"""Fields that the rows of all sliding-window kernels share (convolution, depthwise, pooling)."""

from __future__ import annotations

import numpy as np

WINDOW_FIELDS = [
    ("x", np.int64),  # offset of the input in the arena, bytes an image
    ("y", np.int64),  # offset of the output
    ("images", np.int64),  # images for one of the batch
    ("zero_point", np.int64),  # of the stored (u8-biased) input
    ("height", np.int64),
    ("width", np.int64),
    ("channels", np.int64),
    ("rows", np.int64),  # of the output
    ("cols", np.int64),
    ("stride_y", np.int64),
    ("stride_x", np.int64),
    ("dilation_y", np.int64),
    ("dilation_x", np.int64),
    ("top", np.int64),  # padding
    ("left", np.int64),
    ("counter", np.int64),  # offset of the saturation counter
    ("epilogue", np.int64),  # address of the EPILOGUE record
]

WEIGHT_FIELDS = [
    ("weights", np.int64),  # offset of the packed weights
    ("start", np.int64),  # offset of the int32 that every sum starts from
    ("segments", np.int64),  # address of the records of the parts that are rounded by themselves
    ("segment_count", np.int64),
    ("stream_shift", np.int64),  # right shift of every segment's sum; -1: sums stay exact
    ("ties", np.int64),  # rounding of that shift
    ("narrow", np.int64),  # 1: ties away from zero, and no sum can exceed 32 bits
]
