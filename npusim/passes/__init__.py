"""From the operators of a file to those of the NPU, one pass a file."""

from __future__ import annotations

from npusim.passes.absorb_transpose import AbsorbTranspose
from npusim.passes.expand_qoperators import ExpandQOperators
from npusim.passes.fold_batchnorm import FoldBatchNorm
from npusim.passes.fold_constants import FoldConstants
from npusim.passes.fuse_units import FuseUnits
from npusim.passes.hoist_quantize import HoistQuantize
from npusim.passes.lift_batch import LiftBatch
from npusim.passes.merge_bias import MergeBias
from npusim.passes.merge_pad import MergePad
from npusim.passes.quantize_constants import QuantizeBias, RecoverWeights
from npusim.passes.refuse_unsupported import RefuseUnsupported
from npusim.passes.remove_identity import RemoveIdentity
from npusim.passes.verify import Verify

PIPELINE = (
    RemoveIdentity(),
    AbsorbTranspose(),
    FoldConstants(),
    MergeBias(),
    RefuseUnsupported(),
    ExpandQOperators(),
    RecoverWeights(),
    FoldBatchNorm(),
    QuantizeBias(),
    HoistQuantize(),
    FuseUnits(),
    MergePad(),
    LiftBatch(),
    Verify(),
)

__all__ = ["PIPELINE"]
