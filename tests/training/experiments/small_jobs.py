"""Jobs of tiny models, one config of each experiment and each kind of classifier."""

import copy

import numpy as np

from deq_keras.tokenizers import CharacterTokenizer
from tests.training.conftest import SMALL as CLASSIFICATION
from tests.training.experiments.small_tasks import SHORT as DEFAULTS
from tests.training.experiments.small_texts import SMALL as TEXT
from tests.training.experiments.test_graphs import TINY as GRAPHS
from tests.training.experiments.test_imaging import TINY as IMAGING
from tests.training.experiments.test_mdeq_classification import SMALL as MDEQ
from tests.training.experiments.test_mdeq_segmentation import SMALL as SEGMENTATION
from tests.training.experiments.test_reasoning import TINY as REASONING
from tests.training.experiments.test_synthetic import SHORT as SYNTHETIC
from tests.training.experiments.test_trellisnet import SMALL as TRELLISNET
from tests.training.experiments.test_world import TINY as WORLD
from training import registry
from training.config import reading as configs
from training.experiments.language_model.text import Text

COPY_MEMORY = {
    "experiment": "copy_memory",
    "data": {"delay": 3, "num_train": 4, "num_test": 4},
    "model": {"solver": "fixed_point_iteration"},
    "phases": [{"epochs": 1}],
}
MONOTONE = {
    **CLASSIFICATION,
    "model": {
        "name": "monotone",
        "cell": {"class_name": "monotone_dense_cell", "units": 8},
    },
}


def job(mapping, *changes, folder=None):
    """Returns the job of the first variant of a config."""
    config = configs.resolve(copy.deepcopy(mapping), changes)
    config = configs.variant(config, configs.variant_names(config)[0])
    cls = registry.implementation(config.experiment)
    if mapping in (TEXT, TRELLISNET):
        tokens = np.zeros(1000, "int32")
        text = Text(CharacterTokenizer(["a", "b", "c"]), tokens, tokens, tokens, None)
        return cls(config, lambda: text, folder)
    return cls(config, folder=folder)


ALL = {
    "classification": CLASSIFICATION,
    "copy_memory": COPY_MEMORY,
    "defaults": DEFAULTS,
    "graphs": GRAPHS,
    "imaging": IMAGING,
    "language_model": TEXT,
    "mdeq": MDEQ,
    "mdeq_segmentation": SEGMENTATION,
    "monotone": MONOTONE,
    "reasoning": REASONING,
    "synthetic": SYNTHETIC,
    "trellisnet": TRELLISNET,
    "world": WORLD,
}
