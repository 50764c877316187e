"""Extensions of KerasHub's backbones and tasks."""

from deq_keras.models.kerashub.extensions import (
    FOLDER,
    PackagedBackbone,
    PackagedPreprocessor,
    RestorableTask,
    architecture,
    head_dtype_config,
    preset_path,
    trained_preset,
)

__all__ = [
    "FOLDER",
    "PackagedBackbone",
    "PackagedPreprocessor",
    "RestorableTask",
    "architecture",
    "head_dtype_config",
    "preset_path",
    "trained_preset",
]
