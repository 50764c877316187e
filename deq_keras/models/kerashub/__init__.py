"""Extensions of KerasHub's backbones and tasks."""

from deq_keras.models.kerashub.extensions import (
    ArchitecturePresets,
    RestorableTask,
    architecture,
    equilibrium_config,
)

__all__ = [
    "ArchitecturePresets",
    "RestorableTask",
    "architecture",
    "equilibrium_config",
]
