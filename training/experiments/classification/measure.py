"""Accuracy of a trained classifier at fixed numbers of function evaluations."""

import numpy as np
import tensorflow as tf

from ...evaluation.answers import means_of_solves


def accuracy_at_budgets(opened, batches, budgets):
    """Measures a classifier that may evaluate its cell only so many times.

    Every budget is a new solve with the model's own solver and tolerance, started from
    the cell's initial state.

    Args:
        opened: the `CutModel` of a classifier, or an `ExportedModel`.
        batches: dataset of `(images, labels)` as it takes them.
        budgets: list of ints, each a `max_iter`.

    Returns:
        A list of one dict a budget: `budget`; `accuracy`; means over the images of
        `evaluations` (fewer than the budget where the tolerance was met) and of the
        `residual`; the share `converged`.
    """
    answer = opened.answers()

    def measure(images, labels, budget):
        logits, statistics = answer(images, budget)
        is_correct = np.argmax(logits, axis=-1) == np.asarray(labels)
        return {"accuracy": is_correct, **statistics}

    return [
        {
            "budget": budget,
            **means_of_solves([measure(*batch, budget) for batch in batches]),
        }
        for budget in budgets
    ]


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
