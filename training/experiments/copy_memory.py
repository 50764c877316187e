"""Networks that copy symbols over a long delay, which tests their memory."""

from typing import Literal

import keras
import numpy as np
import tensorflow as tf

import deq_keras

from ..config import keys
from ..config.fields import Components, Config, EvaluationConfig, VariantsConfig
from ..errors import config_errors
from ..registry import Experiment, Score
from ..runs.feed import ArrayFeed
from ..runs.job import ArrayJob
from ..runs.phases import equilibrium

NUM_SYMBOLS = 10  # Symbols 1 to 8 are copied, 0 is blank, 9 marks the copy.
NUM_COPIED = 10


class DataConfig(Config):
    """The sequences; see `copy_memory`.

    Args:
        delay: Positive integer. The delay T. A symbol and its repetition are T + 10
            positions apart.
        num_train: Positive integer. Number of training sequences, drawn once.
        num_test: Positive integer. Number of test sequences.
        batch_size: Positive integer. Batch size of training.
        seed: Integer. Seed of the sequences, independent of the seed of the run.
    """

    delay: keys.integer(le=2**16) = 400
    num_train: keys.Drawn = 10_000
    num_test: keys.Drawn = 1000
    batch_size: keys.Batch = 32
    seed: keys.Seed = 0


class ModelConfig(Components):
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
    units: keys.Width = 32
    num_heads: keys.Width = 4
    intermediate_dim: keys.Width = 80
    num_blocks: keys.integer(le=16) = 8
    kernel_size: keys.integer(ge=2, le=64) = 8
    dropout: keys.Rate = 0.0


class CopyMemoryEvaluationConfig(EvaluationConfig):
    """The measurements of a trained network; see `EvaluationConfig`."""

    budgets: keys.Distinct[keys.Budget] = [4, 8, 12, 20, 30]
    num_samples: keys.Batch = 8


class CopyMemoryConfig(VariantsConfig):
    """A network that copies symbols over a delay; see `VariantsConfig`."""

    experiment: Literal["copy_memory"]
    model: ModelConfig
    data: DataConfig = DataConfig()
    evaluation: CopyMemoryEvaluationConfig = CopyMemoryEvaluationConfig()


def copy_memory(num_sequences, delay, seed):
    """Draws int32 inputs and targets, `(num_sequences, delay + 20)` each.

    The first ten positions are symbols drawn from 1 to 8. Zeros follow, and then the
    symbol 9 eleven times, which requests the first ten symbols in the last ten
    positions. Without memory, the best prediction there is uniform over all symbols,
    with a loss of `10 ln 8 / (delay + 20)`: 0.0495 for a delay of 400.

    Source: Bai, Kolter and Koltun (2018), locuslab/TCN; the task is of Hochreiter and
    Schmidhuber (1997).
    """
    random = np.random.default_rng(seed)
    copied = random.integers(1, 9, (num_sequences, NUM_COPIED))
    shape = (num_sequences, delay + 2 * NUM_COPIED)
    inputs, targets = np.zeros(shape, "int32"), np.zeros(shape, "int32")
    inputs[:, :NUM_COPIED] = copied
    inputs[:, -NUM_COPIED - 1 :] = 9
    targets[:, -NUM_COPIED:] = copied
    return inputs, targets


def tcn(features, config, policy):
    """Applies residual blocks of two dilated causal convolutions."""
    for block in range(config.num_blocks):
        branch = features
        for _ in range(2):
            branch = deq_keras.layers.WeightNormalizedConv1D(
                config.units,
                config.kernel_size,
                padding="causal",
                dilation_rate=2**block,
                activation="relu",
                dtype=policy,
            )(branch)
            branch = keras.layers.Dropout(config.dropout, dtype=policy)(branch)
        features = keras.layers.Add(dtype=policy)([features, branch])
        features = keras.layers.ReLU(dtype=policy)(features)
    return features


class CopyMemoryFeed(ArrayFeed):
    """The sequences, in the same order in every pass."""

    def fit_arguments(self, steps):
        size = self.config.data.batch_size
        batches = tf.data.Dataset.from_tensor_slices(tuple(self.training)).batch(size)
        return {
            "x": batches.repeat().skip(steps.start % self.steps_per_epoch),
            "steps_per_epoch": self.steps_per_epoch,
            "validation_data": self.test,
            "validation_batch_size": size,
        }


class CopyMemoryJob(ArrayJob):
    """One network of the copy memory task."""

    feed_class = CopyMemoryFeed
    monitor = "val_loss"
    counts_failures = False
    steps_per_execution = 1

    @property
    def evaluation_batch_size(self):
        return self.config.data.batch_size

    @staticmethod
    def draw(config, seed):
        del seed  # The sequences are the same for every seed of a run.
        training = copy_memory(config.num_train, config.delay, config.seed)
        return training, copy_memory(config.num_test, config.delay, config.seed + 1)

    def build_model(self):
        config, policy = self.config.model, keras.DTypePolicy(self.config.precision)
        symbols = keras.Input((None,), dtype="int32", name="symbols")
        with config_errors("model"):
            features = keras.layers.Embedding(NUM_SYMBOLS, config.units, dtype=policy)(
                symbols
            )
            if config.network == "deq_transformer":
                cell = deq_keras.layers.TransformerCell(
                    config.units,
                    config.num_heads,
                    config.intermediate_dim,
                    dropout_rate=config.dropout,
                    dtype=policy,
                )
                features = equilibrium(cell, config, policy)(features)
            elif config.network == "tcn":
                features = tcn(features, config, policy)
            else:
                cls = getattr(keras.layers, config.network.upper())
                features = cls(config.units, return_sequences=True, dtype=policy)(
                    features
                )
            wide = keras.backend.result_type(policy.compute_dtype, "float32")
            logits = keras.layers.Dense(NUM_SYMBOLS, dtype=wide, name="logits")
            return keras.Model(symbols, logits(features), name=config.network)

    def loss(self):
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def score(self, predictions, targets):
        return self.loss()(targets, predictions)


EXPERIMENT = Experiment(
    CopyMemoryConfig,
    CopyMemoryJob,
    Score("loss", "test loss [nats a position]", 1, ".2e"),
)
