"""What the config of the copy memory task may say, with all defaults."""

from dataclasses import dataclass, field
from typing import Any, Literal

from ...config.bounds import BATCH, BUDGET, DRAWN, LAYERS, RATE, SEED, WIDTH
from ...config.component_fields import (
    gradient_field,
    initial_state_field,
    regularizer_field,
    solver_field,
)
from ...config.fields import VariantsConfig

_DELAY = {"minimum": 1, "maximum": 2**16}


@dataclass(frozen=True)
class DataConfig:
    """The sequences; see `copy_memory`.

    Args:
        delay: T, less ten the positions between a symbol and its repetition.
        num_train: sequences to train on, drawn once.
        num_test: sequences to test with.
        batch_size: of a training step.
        seed: Seed of the sequences, independent of the seed of the run.
    """

    delay: int = field(default=400, metadata=_DELAY)
    num_train: int = field(default=10_000, metadata=DRAWN)
    num_test: int = field(default=1000, metadata=DRAWN)
    batch_size: int = field(default=32, metadata=BATCH)
    seed: int = field(default=0, metadata=SEED)


@dataclass(frozen=True)
class ModelConfig:
    """An embedding, a network, and a dense layer at each position.

    Args:
        network: `deq_transformer`, the equilibrium of a `TransformerCell`; `tcn`,
            residual blocks of two dilated causal convolutions; `lstm` or `gru`.
        units: size of its states; of a TCN its filters.
        num_heads: of the attention.
        intermediate_dim: of the cell's second branch.
        num_blocks: of the TCN, the dilation of which doubles from block to block.
        kernel_size: of the TCN.
        dropout: of the cell, and after the convolutions of the TCN.
        solver: of the equilibrium, as the other parts.
    """

    network: Literal["deq_transformer", "tcn", "lstm", "gru"] = "deq_transformer"
    units: int = field(default=32, metadata=WIDTH)
    num_heads: int = field(default=4, metadata=WIDTH)
    intermediate_dim: int = field(default=80, metadata=WIDTH)
    num_blocks: int = field(default=8, metadata={**LAYERS, "maximum": 16})
    kernel_size: int = field(default=8, metadata={"minimum": 2, "maximum": 64})
    dropout: float = field(default=0.0, metadata=RATE)
    solver: Any = solver_field("anderson")
    gradient: Any = gradient_field("implicit")
    regularizer: Any = regularizer_field(None)
    initial_state: Any = initial_state_field("cell")


@dataclass(frozen=True)
class BudgetConfig:
    """What is measured of a trained equilibrium.

    Args:
        budgets: numbers of function evaluations (NFE) at which the loss is measured.
        num_samples: test sequences for the residual curves and the spectral radius.
        max_iter: evaluations of the solves there.
    """

    budgets: list[int] = field(
        default_factory=lambda: [4, 8, 12, 20, 30],
        metadata={"non_empty": True, **BUDGET},
    )
    num_samples: int = field(default=8, metadata=BATCH)
    max_iter: int = field(default=30, metadata=BUDGET)


@dataclass(frozen=True)
class CopyMemoryConfig(VariantsConfig):
    """A network that copies symbols over a delay; see `VariantsConfig`."""

    experiment: Literal["copy_memory"]
    model: ModelConfig
    data: DataConfig = DataConfig()
    evaluation: BudgetConfig = BudgetConfig()
