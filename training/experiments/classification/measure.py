"""Accuracy of a trained classifier at fixed numbers of function evaluations."""

import numpy as np
import tensorflow as tf

from deq_keras.solvers import CONVERGED


def accuracy_at_budgets(opened, batches, budgets):
    """Measures a classifier that may evaluate its cell only so many times.

    Every budget is a new solve with the model's own solver and tolerance, started from
    the cell's initial state.

    Args:
        opened: the `CutModel` of a classifier.
        batches: dataset of `(images, labels)` as `opened.encode` takes them.
        budgets: list of ints, each a `max_iter`.

    Returns:
        A list of one dict a budget: `budget`; `accuracy`; means over the images of
        `evaluations` (fewer than the budget where the tolerance was met) and of the
        `residual`; the share `converged`.
    """

    # One trace serves all budgets: they are tensors.
    @tf.function(reduce_retracing=True)
    def measure(images, labels, budget):
        solution = opened.layer.solve(opened.encode(images), max_iter=budget)
        predicted = tf.argmax(opened.classify(solution.value), axis=-1)
        is_correct = tf.equal(tf.cast(predicted, labels.dtype), labels)
        return is_correct, solution.num_evaluations, solution.residual, solution.status

    rows = []
    for budget in budgets:
        measured = [
            measure(images, labels, tf.constant(budget)) for images, labels in batches
        ]
        rows.append({"budget": budget, **_means(measured)})
    return rows


def _means(measured):
    is_correct, evaluations, residual, status = (
        np.concatenate([np.asarray(values) for values in batches])
        for batches in zip(*measured, strict=True)
    )
    return {
        "accuracy": float(is_correct.mean()),
        "evaluations": float(evaluations.mean()),
        "residual": float(residual.mean()),
        "converged": float((status == CONVERGED).mean()),
    }


def accuracy_of_layers(model, num_layers, batches):
    """Measures an explicit network, as a row of the budget of its layers."""
    measured = [
        tf.equal(
            tf.argmax(model(images, training=False), axis=-1), tf.cast(labels, "int64")
        )
        for images, labels in batches
    ]
    return {
        "budget": num_layers,
        "accuracy": float(np.concatenate(measured).mean()),
        "evaluations": num_layers,
        "residual": None,
        "converged": None,
    }
