"""Data sets, pre-processing, corruptions and the packaged demonstration network.

``open_dataset`` reads a data set, ``make_inputs`` turns it into a network's inputs, and
``demo_task`` names the embedded default of ``npusim train --demo``. h5py and scikit-learn are
imported only where a data set needs them.
"""

from npusim.models.dataset import DataSet, ImageSource, limited, train_validation_split
from npusim.models.demo import DemoTask, demo_task
from npusim.models.inputs import Inputs, make_inputs, named_source
from npusim.models.opening import BUILT_IN, dataset_splits, open_dataset
from npusim.models.preprocess import METADATA_KEY, Preprocess, check
from npusim.models.shifts import Shift, parse_shifts, shift_images

__all__ = [
    "BUILT_IN",
    "METADATA_KEY",
    "DataSet",
    "DemoTask",
    "ImageSource",
    "Inputs",
    "Preprocess",
    "Shift",
    "check",
    "dataset_splits",
    "demo_task",
    "limited",
    "make_inputs",
    "named_source",
    "open_dataset",
    "parse_shifts",
    "shift_images",
    "train_validation_split",
]
