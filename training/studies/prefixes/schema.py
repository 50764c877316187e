"""What the config of the study of prefixes may say, with all defaults."""

from dataclasses import dataclass, field
from typing import Literal

from ...config.bounds import BATCH, BUDGET, DRAWN, SEED, WIDTH
from ...config.fields import OptimizerConfig, SegmentsConfig
from ..equilibrium_config import EquilibriumConfig

_LENGTH = {"minimum": 1, "maximum": 2**14}


@dataclass(frozen=True)
class MeasurementConfig:
    """What is measured of every model.

    Args:
        lengths: bits of the strings.
        budgets: evaluations of the solves of each length.
        examples: strings of each length.
        batch_size: of a solve.
    """

    lengths: list[int] = field(
        default_factory=lambda: [32, 128, 512],
        metadata={"non_empty": True, "distinct": True, **_LENGTH},
    )
    budgets: list[int] = field(
        default_factory=lambda: [64, 160, 512],
        metadata={"non_empty": True, "distinct": True, **BUDGET},
    )
    examples: int = field(default=200, metadata=DRAWN)
    batch_size: int = field(default=100, metadata=BATCH)


@dataclass(frozen=True)
class PrefixesConfig:
    """The study: one model for each seed.

    Args:
        experiment: the experiment this config is for.
        seeds: of strings, initialization and all else that is drawn.
        length: bits of the strings of training.
        train_examples: strings of training, each seen once.
        units: channels of the state.
        activation: what bounds the state; see `deq_keras.layers.RecallCell`.
        batch_size: of a training step; with segments, fresh strings of one.
        equilibrium: how the model solves and differentiates.
        segments: how it is trained in segments; null for complete solves in each step.
        optimizer: the optimizer.
        measurement: what is measured of every model.
    """

    experiment: Literal["prefixes"]
    seeds: list[int] = field(
        default_factory=lambda: [0, 1, 2, 3, 4],
        metadata={"non_empty": True, "distinct": True, **SEED},
    )
    length: int = field(default=32, metadata=_LENGTH)
    train_examples: int = field(default=288_000, metadata=DRAWN)
    units: int = field(default=48, metadata=WIDTH)
    activation: Literal["relu", "relu6", "tanh", "sphere"] = "relu6"
    batch_size: int = field(default=64, metadata=BATCH)
    equilibrium: EquilibriumConfig = EquilibriumConfig()
    segments: SegmentsConfig | None = None
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    measurement: MeasurementConfig = MeasurementConfig()
