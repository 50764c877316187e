"""What the config of the study of the defaults may say, with all defaults."""

from dataclasses import dataclass, field
from typing import Any, Literal

from ...config.bounds import BATCH, BUDGET, EPOCHS, NAME, SEED, WIDTH
from ...config.fields import OptimizerConfig, variants_field
from ..equilibrium_config import EquilibriumConfig

TASKS = (
    "digits_pooled",
    "digits_positions",
    "digits_dense",
    "sorting",
    "regression",
    "parity",
    "blobs",
    "gated",
    "seen_before",
    "chain",
    "addition",
    "flood",
    "permutations",
    "tabular_gated",
    "tabular_leaky",
    "tabular_normalized",
    "field",
    "groups",
)

# They are held in memory, grids and images the largest of them.
_DRAWN = {"minimum": 1, "maximum": 1_000_000}


@dataclass(frozen=True)
class TaskConfig:
    """A task and how a model is trained for it.

    Args:
        name: which task.

            - `digits_pooled`, `digits_positions`: digits, by a residual block on images
              without and with positions in the head.
            - `digits_dense`: digits, by a dense cell on pixels.
            - `sorting`: sequences of symbols, by an attention cell.
            - `regression`: a function of four numbers, by a dense cell.
            - `gated`: a class of eight numbers, by a gated cell.

            - `tabular_gated`, `tabular_leaky`, `tabular_normalized`: a function of six
              numbers, by cells that converge slowly.
            - `field`: the potential of sources on a grid, by convolutions.
            - `groups`: how many connected groups the pixels of a grid form, by
              convolutions and a pooled head.

            In the others information must travel; all but `blobs` have a label at each
            position.

            - `parity`: parity of every prefix of 16 bits, by convolutions.
            - `addition`: bits of the sum of two numbers of 16 bits, the lowest first,
              by convolutions.
            - `permutations`: the permutation of three things that every prefix of 12
              swaps is, by convolutions.
            - `blobs`: how many squares are in an image, by convolutions and a pooled
              head.
            - `flood`: which free pixels of a grid have a path to the source, by
              convolutions; the score is of free pixels.
            - `seen_before`: whether a token has been seen before, by a transformer
              cell.
            - `chain`: the class of the input at one end of a chain, by messages between
              neighbors.
        units: channels or units of the state; a multiple of 4 for cells of
            convolutions or attention.
        epochs: of every run; see `updates`.
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
        long_budget: evaluations of the longer solve, at which there are a score and a
            residual too.
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
        references: the variants with the best of which the others are compared, seed by
            seed.
        seeds: of data that are drawn, initialization, shuffling and probes.
        equilibrium: how every variant solves and differentiates.
        updates: factor on the epochs of every task, so that a variant may be trained
            for longer. They are rounded, and at least one.
        measurement: what is measured of every model.
    """

    experiment: Literal["defaults"]
    tasks: list[TaskConfig] = field(metadata={"non_empty": True})
    variants: dict[str, Any] = variants_field()
    references: list[str] = field(
        metadata={
            "non_empty": True,
            "distinct": True,
            "max_length": NAME["max_length"],
        }
    )
    seeds: list[int] = field(
        default_factory=lambda: [0, 1, 2],
        metadata={"non_empty": True, "distinct": True, **SEED},
    )
    equilibrium: EquilibriumConfig = EquilibriumConfig()
    updates: float = field(default=1.0, metadata={"above": 0, "maximum": 100})
    measurement: MeasurementConfig = MeasurementConfig()
