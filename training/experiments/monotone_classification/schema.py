"""What the config of a monotone classifier may say, with all defaults."""

from dataclasses import dataclass
from typing import Any, Literal

from ...config.component_fields import (
    gradient_field,
    monotone_cell_field,
    regularizer_field,
    solver_field,
    start_field,
)
from ..classification.schema import ClassificationConfig


@dataclass(frozen=True)
class MonotoneConfig:
    """Arguments of `MonotoneClassifier`; see there."""

    cell: Any = monotone_cell_field()
    solver: Any = solver_field("peaceman_rachford")
    gradient: Any = gradient_field("implicit")
    regularizer: Any = regularizer_field(None)
    start: Any = start_field("cell")


@dataclass(frozen=True)
class MonotoneClassificationConfig(ClassificationConfig):
    """A monotone classifier of images; see `ClassificationConfig`."""

    experiment: Literal["monotone_classification"]
    model: MonotoneConfig
