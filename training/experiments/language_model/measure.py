"""The loss of a language model at fixed budgets of function evaluations."""

import math

import keras
import numpy as np

from deq_keras.layers import SolveScope

from ...evaluation.readout import BudgetBar


def losses_at_budgets(model, layer, segments, budgets):
    """Measures the loss of a text at each budget.

    The solver's own tolerance applies, so solves can use less than the budget.

    Args:
        model: A `NextTokenLossModel`.
        layer: The `DEQ` layer of the model.
        segments: Dataset of examples in the order of the text.
        budgets: List of positive integers, each a `max_iter`.

    Returns:
        List of dicts with `budget`, `loss` (nats per token), `perplexity`, the means
        over samples of `residual` and `evaluations`, and the fraction `converged`.
    """
    model.compile(keras.optimizers.SGD())
    rows, bar = [], BudgetBar(budgets, len(segments))
    for budget in budgets:
        with SolveScope(max_iter=budget):
            logs = model.evaluate(
                segments, verbose=0, callbacks=[_Counted(bar, budget)], return_dict=True
            )
        statistics = ("residual", "evaluations", "converged")
        rows.append(
            {
                "budget": budget,
                **_loss(logs),
                **{name: logs[f"{layer.name}_{name}"] for name in statistics},
            }
        )
    return rows


class _Counted(keras.callbacks.Callback):
    """Counts the segments of an evaluation in a `BudgetBar`."""

    def __init__(self, bar, budget):
        super().__init__()
        self._bar = bar
        self._budget = budget

    def on_test_batch_end(self, batch, logs=None):
        self._bar.add(self._budget)


def token_losses(log_probabilities, targets):
    """Returns the loss of each token, in nats.

    Args:
        log_probabilities: Array `(batch, length, vocabulary)`.
        targets: Integer array `(batch, length)`.
    """
    targets = np.asarray(targets)[..., None]  # (batch, length, 1)
    found = np.take_along_axis(np.asarray(log_probabilities), targets, axis=-1)
    return {"loss": -found.ravel()}


def loss_and_perplexity(scores):
    """Returns the mean `loss` over all tokens and its `perplexity`."""
    losses = np.concatenate([one["loss"] for one in scores])
    loss = float(np.mean(losses, dtype="float64"))
    return {"loss": loss, "perplexity": math.exp(loss)}


def loss_of_layers(model, num_layers, segments):
    """Returns the row of an explicit network, whose budget is its layers."""
    model.compile(keras.optimizers.SGD())
    logs = model.evaluate(segments, verbose=0, return_dict=True)
    statistics = {"residual": None, "evaluations": num_layers, "converged": None}
    return {"budget": num_layers, **_loss(logs), **statistics}


def _loss(logs):
    # Averages over tokens. Keras' mean loss gives a short last segment full weight.
    return {"loss": math.log(logs["perplexity"]), "perplexity": logs["perplexity"]}
