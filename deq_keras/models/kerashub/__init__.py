"""Extensions of KerasHub's backbones and tasks."""

from deq_keras.models.kerashub.extensions import (
    FOLDER,
    PackagedPresets,
    RestorableTask,
    architecture,
    equilibrium_config,
    head_dtype_config,
    trained,
)

__all__ = [
    "FOLDER",
    "PackagedPresets",
    "RestorableTask",
    "architecture",
    "equilibrium_config",
    "head_dtype_config",
    "trained",
]
