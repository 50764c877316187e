"""Loss of networks that copy symbols, of an equilibrium at fixed budgets."""

import keras
import numpy as np
import tensorflow as tf

from deq_keras.solvers import CONVERGED, SolveRequest


def losses_at_budgets(opened, inputs, targets, batch_size, budgets):
    """Returns one dict a budget, as `Job.evaluate` says.

    Args:
        opened: the `CutModel` of the network.
        inputs: int32 array `(num_sequences, length)`.
        targets: of the same shape.
        batch_size: int. Sequences that are solved at once.
        budgets: list of ints, each a `max_iter`.
    """
    batches = tf.data.Dataset.from_tensor_slices((inputs, targets)).batch(batch_size)

    # One trace serves all budgets: they are tensors.
    @tf.function(reduce_retracing=True)
    def measure(symbols, said, budget):
        solution = opened.layer.solve(
            opened.encode(symbols), SolveRequest(max_iter=budget)
        )
        loss = _losses(said, opened.classify(solution.value))
        is_converged = tf.equal(solution.status, CONVERGED)
        return loss, solution.num_evaluations, solution.residual, is_converged

    rows = []
    for budget in budgets:
        measured = [measure(*batch, tf.constant(budget)) for batch in batches]
        means = [float(np.mean(np.concatenate(values))) for values in zip(*measured)]
        names = ("loss", "evaluations", "residual", "converged")
        rows.append({"budget": budget, **dict(zip(names, means, strict=True))})
    return rows


def loss_of_network(model, inputs, targets, batch_size):
    """Returns the row of a network that takes a symbol at a time."""
    batches = tf.data.Dataset.from_tensor_slices((inputs, targets)).batch(batch_size)
    losses = [_losses(said, model(symbols)) for symbols, said in batches]
    return {
        "budget": 1,
        "loss": float(np.mean(np.concatenate(losses))),
        "residual": None,
        "evaluations": 1,
        "converged": None,
    }


def _losses(targets, logits):
    """Mean over the positions of each sequence, in nats."""
    losses = keras.ops.sparse_categorical_crossentropy(
        targets, logits, from_logits=True
    )
    return keras.ops.mean(losses, axis=-1)
