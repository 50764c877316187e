"""Exact answers at fixed numbers of function evaluations."""

import numpy as np

from ...data.reasoning import solved
from ...evaluation.answers import means_of_solves


def exact_at_budgets(opened, batches, budgets):
    """Returns one dict a budget, as `Job.evaluate` says.

    Every budget is a new solve with the model's own solver and tolerance.

    Args:
        opened: the `CutModel` of a reasoner, or an `ExportedModel`.
        batches: list of `Examples`.
        budgets: list of ints, each a `max_iter`.
    """
    answer = opened.answers()

    def measure(batch, budget):
        logits, statistics = answer(batch.inputs, budget)
        classes = np.argmax(logits, axis=-1)
        return {"exact_match": solved(classes, batch), **statistics}

    return [
        {"budget": budget, **means_of_solves([measure(b, budget) for b in batches])}
        for budget in budgets
    ]
