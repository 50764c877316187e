"""Builds a model of the study of prefixes."""

import keras

from deq_keras.layers import RecallCell

from ..equilibrium import equilibrium_layer


def build(config, seed):
    """Returns the functional model bits -> DEQ -> two logits at each position.

    Args:
        config: the `PrefixesConfig`.
        seed: int. Of initialization and all else that is drawn.

    Raises:
        InputError: if a part of the layer refuses an argument.
    """
    # Set here, because initializers draw from the global generator.
    keras.utils.set_random_seed(seed)
    layer = equilibrium_layer(
        RecallCell(config.units, 1, config.activation, name="cell"),
        config.equilibrium,
        seed,
    )
    bits = keras.Input((None, 1), name="bits")
    logits = keras.layers.Dense(2, name="parity")(layer(bits))
    return keras.Model(bits, logits, name="prefixes")
