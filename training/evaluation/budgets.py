"""Scores of a model, an explicit network or an exported file at several budgets."""

import functools
import sys

import keras
import numpy as np
import tensorflow as tf

import deq_keras
from deq_keras.diagnostics import ModelParts, split_model
from deq_keras.models import NextTokenLossModel, UntiedLayers


def equilibrium(model):
    """Returns the `DEQ` layer of a model, or `None` for explicit networks."""
    layers = model._flatten_layers()
    if any(isinstance(layer, UntiedLayers) for layer in layers):
        return None  # Its layers are single evaluations of cells.
    found = [layer for layer in layers if isinstance(layer, deq_keras.layers.DEQ)]
    return found[0] if found else None


def split(model):
    """Returns the `ModelParts` of a model with one `DEQ` layer."""
    if not isinstance(model, NextTokenLossModel):
        return split_model(model)
    # A memory of segments is not a model, which could be split.
    causal_lm, layer = model.causal_lm, equilibrium(model)
    backbone = causal_lm.backbone

    def encode(token_ids):
        embedded = backbone.token_embedding(token_ids)
        explicit = getattr(backbone.segment_layer, "explicit", None)
        return embedded if explicit is None else explicit(embedded)

    return ModelParts(
        encode, layer, lambda state: causal_lm.softmax(layer.cell.features(state))
    )


def predictor(model):
    """Returns the function `predict` of `measure_at_budgets` for a model with one `DEQ`
    layer. It accepts a tolerance `tol` too."""
    predict = deq_keras.diagnostics.Predictor(model)

    def predict_at(inputs, budget, tol=None):
        prediction = predict(inputs, budget, tol)
        solution = prediction.solution
        return prediction.outputs, {
            "evaluations": solution.num_evaluations,
            "residual": solution.residual,
            "converged": tf.equal(solution.status, deq_keras.solvers.CONVERGED),
        }

    return predict_at


def explicit_predictor(model, num_layers):
    """Returns the function `predict` of `measure_at_budgets` for an explicit network,
    whose only budget is the number of its layers."""
    call = tf.function(
        functools.partial(model, training=False), reduce_retracing=True, autograph=False
    )
    return lambda inputs, budget: (call(inputs), {"evaluations": [num_layers]})


class BudgetBar:
    """A progress bar of a measurement at several budgets, if stdout is a terminal.

    The bar counts evaluations of the cell, and so estimates the remaining time well
    although a budget of 30 takes longer than a budget of 1.

    Args:
        budgets: List of positive integers.
        num_batches: Positive integer. Number of batches that are measured per budget.
    """

    def __init__(self, budgets, num_batches):
        self._bar = None
        if sys.stdout.isatty():
            target = num_batches * sum(budgets)
            self._bar = keras.utils.Progbar(target, unit_name="NFE")

    def add(self, budget):
        """Counts a batch that was measured at a budget."""
        if self._bar is not None:
            self._bar.add(budget)


def measure_at_budgets(predict, batches, score, budgets, summarize=None):
    """Scores outputs at several budgets of function evaluations.

    Shows its progress if the output is a terminal. Each budget is a new solve, started
    from the layer's initial state.

    Args:
        predict: Function from inputs and a budget to outputs and a dict of arrays with
            one entry per sample, the statistics of the solve; see `predictor`,
            `explicit_predictor` and `ExportedFile.predict`.
        batches: List or dataset of `(inputs, targets)`, whose length is known.
        score: Function from outputs and targets to a dict of arrays.
        budgets: List of positive integers, each a `max_iter`.
        summarize: Optional function from the list of the batches' dicts, scores and
            statistics, to numbers of a row. Defaults to `None`, the means over all
            entries.

    Returns:
        A list of one dict per budget: `budget`; the scores; means over the samples of
        `evaluations` (fewer than the budget if the tolerance was met) and of the
        `residual`; the fraction `converged`. The last two are `None` without an
        equilibrium.
    """
    rows, bar = [], BudgetBar(budgets, len(batches))
    for budget in budgets:
        # `solves` apart from `scores`: a `summarize` may return none of its numbers.
        scores, solves = [], []
        for inputs, targets in batches:
            outputs, solve = predict(inputs, budget)
            scores.append({**score(outputs, targets), **solve})
            solves.append(solve)
            bar.add(budget)
        row = {"budget": budget, "residual": None, "converged": None, **means(solves)}
        rows.append({**row, **(summarize or means)(scores)})
    return rows


def means(measured):
    """Returns a dict with the mean of each array over all entries.

    Args:
        measured: List of dicts of arrays with one entry per sample.
    """
    names = measured[0]
    values = {name: [np.asarray(one[name]) for one in measured] for name in names}
    return {name: float(np.concatenate(parts).mean()) for name, parts in values.items()}
