"""The sequences of the copy memory task, and the networks that learn them."""

import keras
import numpy as np

import deq_keras

from ...errors import config_errors
from ...runs.phases import equilibrium

NUM_SYMBOLS = 10  # Symbols 1 to 8 are copied, 0 is blank, 9 marks the copy.
NUM_COPIED = 10


def copy_memory(num_sequences, delay, seed):
    """Draws sequences of symbols and their targets.

    The first ten of `delay + 20` positions are symbols drawn from 1 to 8. Zeros follow,
    and then the symbol 9 eleven times, which requests the first ten symbols in the last
    ten positions. Without memory, the best prediction there is uniform over all
    symbols, with a loss of `10 ln 8 / (delay + 20)`: 0.0495 for a delay of 400.

    Args:
        num_sequences: Positive integer. Number of sequences.
        delay: Positive integer. A symbol and its repetition are `delay + 10` positions
            apart.
        seed: Integer. Seed of the sequences.

    Returns:
        Inputs and targets, int32 `(num_sequences, delay + 20)`.

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


def build_network(config, precision):
    """Builds the model symbols `(batch, length)` -> logits `(batch, length, 10)`.

    Args:
        config: A `ModelConfig`.
        precision: String. Dtype policy of all layers. Logits are float32.

    Raises:
        InputError: If an argument of a layer is invalid.
    """
    policy = keras.DTypePolicy(precision)
    symbols = keras.Input((None,), dtype="int32", name="symbols")
    with config_errors("model"):
        embedded = keras.layers.Embedding(NUM_SYMBOLS, config.units, dtype=policy)(
            symbols
        )
        features = _NETWORKS[config.network](embedded, config, policy)
        wide = keras.backend.result_type(policy.compute_dtype, "float32")
        logits = keras.layers.Dense(NUM_SYMBOLS, dtype=wide, name="logits")(features)
        return keras.Model(symbols, logits, name=config.network)


def _deq_transformer(features, config, policy):
    cell = deq_keras.layers.TransformerCell(
        config.units,
        config.num_heads,
        config.intermediate_dim,
        dropout_rate=config.dropout,
        dtype=policy,
    )
    return equilibrium(cell, config, policy)(features)


def _tcn(features, config, policy):
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


def _recurrent(cls):
    return lambda features, config, policy: cls(
        config.units, return_sequences=True, dtype=policy
    )(features)


_NETWORKS = {
    "deq_transformer": _deq_transformer,
    "tcn": _tcn,
    "lstm": _recurrent(keras.layers.LSTM),
    "gru": _recurrent(keras.layers.GRU),
}
