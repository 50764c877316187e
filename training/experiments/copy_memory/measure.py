"""Loss of networks that copy symbols."""

import keras
import numpy as np
import tensorflow as tf


def in_batches(inputs, targets, batch_size):
    """Returns a dataset of batches of `(inputs, targets)`, int32 `(batch, length)`."""
    return tf.data.Dataset.from_tensor_slices((inputs, targets)).batch(batch_size)


def loss(logits, targets):
    """Returns the mean loss of each sequence, in nats."""
    return {"loss": _losses(targets, logits)}


def loss_of_network(model, inputs, targets, batch_size):
    """Returns the row of an explicit network, which has a single budget."""
    batches = in_batches(inputs, targets, batch_size)
    losses = [_losses(said, model(symbols)) for symbols, said in batches]
    return {
        "budget": 1,
        "loss": float(np.mean(np.concatenate(losses))),
        "residual": None,
        "evaluations": 1,
        "converged": None,
    }


def _losses(targets, logits):
    """Returns the mean loss over the positions of each sequence, in nats."""
    losses = keras.ops.sparse_categorical_crossentropy(
        targets, logits, from_logits=True
    )
    return keras.ops.mean(losses, axis=-1)
