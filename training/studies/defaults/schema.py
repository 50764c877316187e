"""What the config of the study of the defaults may say, with all defaults."""

from dataclasses import dataclass, field
from typing import Any, Literal

from ...config.bounds import BATCH, BUDGET, EPOCHS, NAME, SEED, WIDTH
from ...config.component_fields import (
    gradient_field,
    regularizer_field,
    solver_field,
)
from ...config.fields import OptimizerConfig, variants_field

TASKS = (
    "digits_pooled",
    "digits_positions",
    "digits_dense",
    "sorting",
    "regression",
)
LAYER_DEFAULT = "default"

# They are held in memory, a sequence of one-hot symbols the largest of them.
_DRAWN = {"minimum": 1, "maximum": 1_000_000}


@dataclass(frozen=True)
class EquilibriumConfig:
    """The arguments of `DEQ` besides the cell; `default` leaves one out.

    Args:
        solver: name of a solver, alone or with arguments.
        gradient: name of a gradient, alone or with arguments.
        regularizer: name of a regulariser, alone or with arguments; null for
            none.
    """

    solver: Any = solver_field(LAYER_DEFAULT, LAYER_DEFAULT)
    gradient: Any = gradient_field(LAYER_DEFAULT, LAYER_DEFAULT)
    regularizer: Any = regularizer_field(LAYER_DEFAULT, LAYER_DEFAULT)


@dataclass(frozen=True)
class TaskConfig:
    """A task and how a model is trained for it.

    Args:
        name: `digits_pooled` and `digits_positions` (residual block on images, without
            and with positions in the head), `digits_dense` (dense cell on pixels),
            `sorting` (attention cell on sequences of symbols) or `regression` (dense
            cell on four numbers).
        units: channels or units of the state; with `digits_pooled`, `digits_positions`
            and `sorting` a multiple of 4.
        epochs: of every run.
        batch_size: of a training step.
        train_examples: training examples, the first ones of the digits; null takes all
            digits, or 2048 examples of a task that is drawn.
        test_examples: test examples; null takes all digits, or 1024 that are drawn.
        optimizer: the optimizer.
    """

    name: Literal[TASKS]
    units: int = field(metadata=WIDTH)
    epochs: int = field(metadata=EPOCHS)
    batch_size: int = field(default=64, metadata=BATCH)
    train_examples: int | None = field(default=None, metadata=_DRAWN)
    test_examples: int | None = field(default=None, metadata=_DRAWN)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)


@dataclass(frozen=True)
class MeasurementConfig:
    """What is measured of a trained model besides the score at its own budget.

    Args:
        long_budget: evaluations of the longer solve.
        num_samples: test examples of which the spectral radius is measured, at the
            iterate that the longer solve ends with.
        max_iter: iterations that find the spectral radius.
    """

    long_budget: int = field(default=30, metadata=BUDGET)
    num_samples: int = field(default=64, metadata=BATCH)
    max_iter: int = field(default=120, metadata=BUDGET)


@dataclass(frozen=True)
class DefaultsConfig:
    """The study: one model for each task, seed and variant.

    Args:
        experiment: the experiment this config is for.
        tasks: the tasks.
        variants: name -> {dotted path: value}, the changes of each variant.
        reference: the variant with which the others are compared, seed by seed.
        seeds: of data that are drawn, initialisation, shuffling and probes.
        equilibrium: how every variant solves and differentiates.
        measurement: what is measured of every model.
    """

    experiment: Literal["defaults"]
    tasks: list[TaskConfig] = field(metadata={"non_empty": True})
    variants: dict[str, Any] = variants_field()
    reference: str = field(metadata={"max_length": NAME["max_length"]})
    seeds: list[int] = field(
        default_factory=lambda: [0, 1, 2],
        metadata={"non_empty": True, "distinct": True, **SEED},
    )
    equilibrium: EquilibriumConfig = EquilibriumConfig()
    measurement: MeasurementConfig = MeasurementConfig()
