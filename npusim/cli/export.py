"""npusim export: a checkpoint's weights in the model that the run started from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from npusim.cli.options import (
    check_free,
    overwrite_option,
    q_json_option,
    record_of,
    verbosity_options,
)
from npusim.cli.terminal import emit
from npusim.errors import CheckpointError

if TYPE_CHECKING:
    from npusim.weights import WeightStore
    from npusim.zo.checkpoint import Checkpoint


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "--checkpoint",
    "checkpoint_path",
    type=click.Path(path_type=Path),
    required=True,
    help="The checkpoint.h5 of a training run, finished or not.",
)
@click.option(
    "--output",
    "target",
    type=click.Path(path_type=Path),
    required=True,
    help="The ONNX file to write.",
)
@overwrite_option
@q_json_option
@verbosity_options
def command(
    model: Path, checkpoint_path: Path, target: Path, overwrite: bool, q_json: Path | None
) -> None:
    """Write the weights of a checkpoint into MODEL, the one its run started from.

    Names, dtypes and shapes stay as they are. A record is written beside it, as NAME.run.json.
    """
    import npusim
    from npusim.frontend.export import export
    from npusim.lowering import lowering_metadata
    from npusim.runinfo import write_run_info
    from npusim.weights import WeightStore
    from npusim.zo.checkpoint import load_checkpoint

    check_free(target, overwrite, [model, checkpoint_path, q_json])
    graph = npusim.load(model, q_json)
    checkpoint = load_checkpoint(checkpoint_path)
    header = checkpoint.header
    store = _weights(checkpoint, WeightStore.of(graph), checkpoint_path)
    metadata = lowering_metadata(header["profile"], header["model_crc"], header["lowering"])
    done = export(graph, store, target, metadata)
    record = record_of(target)
    write_run_info(record, "export", {}, [model, checkpoint_path], [target])
    emit(done.message)
    emit(f"output: {target}")
    emit(f"record: {record}")


def _weights(checkpoint: Checkpoint, before: WeightStore, path: Path) -> WeightStore:
    """The model's weights with those of the checkpoint in their places.

    Raises CheckpointError where the model is another one, or the weights are damaged.
    """
    begun = checkpoint.header["model_crc"]
    if before.crc() != begun:
        raise CheckpointError(
            "the run did not start from this model",
            where=str(path),
            got=f"weights of CRC {before.crc():08x}",
            wanted=f"{begun:08x}",
            hint="Give the model that the run started from.",
        )
    after = before.replaced(checkpoint.codes())
    if after.crc() != checkpoint.weights_crc:
        raise CheckpointError(
            "the weights in the checkpoint are damaged",
            where=str(path),
            got=f"CRC {after.crc():08x}",
            wanted=f"{checkpoint.weights_crc:08x}",
        )
    return after
