"""The config of the copy memory task, with all defaults."""

from dataclasses import dataclass, field
from typing import Literal

from ...config.bounds import BATCH, DRAWN, LAYERS, RATE, SEED, WIDTH
from ...config.component_fields import components
from ...config.fields import EvaluationConfig, VariantsConfig

_DELAY = {"minimum": 1, "maximum": 2**16}


@dataclass(frozen=True)
class DataConfig:
    """The sequences; see `copy_memory`.

    Args:
        delay: Positive integer. The delay T. A symbol and its repetition are T + 10
            positions apart.
        num_train: Positive integer. Number of training sequences, drawn once.
        num_test: Positive integer. Number of test sequences.
        batch_size: Positive integer. Batch size of training.
        seed: Integer. Seed of the sequences, independent of the seed of the run.
    """

    delay: int = field(default=400, metadata=_DELAY)
    num_train: int = field(default=10_000, metadata=DRAWN)
    num_test: int = field(default=1000, metadata=DRAWN)
    batch_size: int = field(default=32, metadata=BATCH)
    seed: int = field(default=0, metadata=SEED)


@dataclass(frozen=True)
class ModelConfig(components()):
    """An embedding, a network, and a dense layer at each position.

    Args:
        network: `deq_transformer`, the equilibrium of a `TransformerCell`; `tcn`,
            residual blocks of two dilated causal convolutions; `lstm` or `gru`.
        units: Positive integer. Size of the states, or filters of a TCN.
        num_heads: Positive integer. Number of attention heads of the cell.
        intermediate_dim: Positive integer. Hidden units of the cell's second branch.
        num_blocks: Positive integer. Number of blocks of the TCN, whose dilation
            doubles from block to block.
        kernel_size: Positive integer. Kernel size of the TCN.
        dropout: Float in [0, 1). Dropout rate of the cell, or after the convolutions of
            the TCN.
        solver: Solver of the equilibrium layer.
    """

    network: Literal["deq_transformer", "tcn", "lstm", "gru"] = "deq_transformer"
    units: int = field(default=32, metadata=WIDTH)
    num_heads: int = field(default=4, metadata=WIDTH)
    intermediate_dim: int = field(default=80, metadata=WIDTH)
    num_blocks: int = field(default=8, metadata={**LAYERS, "maximum": 16})
    kernel_size: int = field(default=8, metadata={"minimum": 2, "maximum": 64})
    dropout: float = field(default=0.0, metadata=RATE)


@dataclass(frozen=True)
class CopyMemoryConfig(VariantsConfig):
    """A network that copies symbols over a delay; see `VariantsConfig`."""

    experiment: Literal["copy_memory"]
    model: ModelConfig
    data: DataConfig = DataConfig()
    evaluation: EvaluationConfig = EvaluationConfig([4, 8, 12, 20, 30], num_samples=8)
