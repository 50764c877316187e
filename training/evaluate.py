"""Accuracy of a trained classifier at fixed numbers of function evaluations."""

import numpy as np
import tensorflow as tf

from deq_keras.solvers import CONVERGED
from training.data import evaluation_batches
from training.equilibrium_parts import cut


def accuracy_at_budgets(model, split, budgets, batch_size=256):
    """Measures a classifier that may evaluate its cell only so many times.

    Every budget is a new solve with the model's own solver and tolerance, started from
    the cell's initial state.

    Args:
        model: a functional classifier with one `DEQ` layer.
        split: the `Split` to classify.
        budgets: list of ints, each a `max_iter`.
        batch_size: int. Does not change the result. Defaults to `256`.

    Returns:
        A list of one dict a budget: `budget`; `accuracy`; means over the images of
        `evaluations` (fewer than the budget where the tolerance was met) and of the
        `residual`; the share `converged`.
    """
    parts = cut(model)

    # One trace serves all budgets: they are tensors.
    @tf.function(reduce_retracing=True)
    def measure(images, labels, budget):
        solution = parts.layer.solve(parts.encode(images), max_iter=budget)
        predicted = tf.argmax(parts.classify(solution.value), axis=-1)
        is_correct = tf.equal(tf.cast(predicted, labels.dtype), labels)
        return is_correct, solution.num_evaluations, solution.residual, solution.status

    rows = []
    for budget in budgets:
        batches = [
            measure(images, labels, tf.constant(budget))
            for images, labels in evaluation_batches(split, batch_size)
        ]
        rows.append({"budget": budget, **_means(batches)})
    return rows


def _means(batches):
    is_correct, evaluations, residual, status = (
        np.concatenate([np.asarray(part) for part in parts])
        for parts in zip(*batches, strict=True)
    )
    return {
        "accuracy": float(is_correct.mean()),
        "evaluations": float(evaluations.mean()),
        "residual": float(residual.mean()),
        "converged": float((status == CONVERGED).mean()),
    }
