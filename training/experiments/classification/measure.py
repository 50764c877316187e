"""Measure the accuracy of a classifier at fixed numbers of function evaluations."""

import numpy as np
import tensorflow as tf

from ...evaluation.answers import means_of_solves


def accuracy_at_budgets(opened, batches, budgets):
    """Returns the accuracy of a classifier at budgets of function evaluations.

    Every budget is a new solve with the model's own solver and tolerance, started from
    the cell's initial state.

    Args:
        opened: `CutModel` of a classifier, or `ExportedModel`.
        batches: Dataset of `(images, labels)` as the model takes them.
        budgets: List of positive integers, each a `max_iter`.

    Returns:
        A list of one dict per budget: `budget`; `accuracy`; means over the images of
        `evaluations` (fewer than the budget if the tolerance was met) and of the
        `residual`; the fraction `converged`.
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
    """Returns the accuracy of an explicit network; its budget is its layers."""
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
