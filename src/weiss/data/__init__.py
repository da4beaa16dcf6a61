"""Data: tables of (item, class, split), how they are split and sampled, and images in batches."""

from weiss.data.cache import reuse_decoded_images
from weiss.data.check import Findings, check_table
from weiss.data.crops import CentreCrop, RandomCrop
from weiss.data.datasets import DATASETS, open_table
from weiss.data.glyphs import glyphs
from weiss.data.official_sets import OFFICIAL
from weiss.data.own_data import (
    Assembly,
    folder_remarks,
    from_arrays,
    from_folder,
    from_hub,
    from_list,
)
from weiss.data.pipeline import Batch, Pipeline
from weiss.data.prepare import prepare
from weiss.data.samplers import PerClass, Sampler, Shuffled, share_of
from weiss.data.splits import class_folds, hold_out_classes, leave_fold_out, stratify, train_on_all
from weiss.data.store import BadImagesError
from weiss.data.table import Table

__all__ = [
    "DATASETS",
    "OFFICIAL",
    "Assembly",
    "BadImagesError",
    "Batch",
    "CentreCrop",
    "Findings",
    "PerClass",
    "Pipeline",
    "RandomCrop",
    "Sampler",
    "Shuffled",
    "Table",
    "check_table",
    "class_folds",
    "folder_remarks",
    "from_arrays",
    "from_folder",
    "from_hub",
    "from_list",
    "glyphs",
    "hold_out_classes",
    "leave_fold_out",
    "open_table",
    "prepare",
    "reuse_decoded_images",
    "share_of",
    "stratify",
    "train_on_all",
]
