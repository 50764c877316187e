"""The loss of a language model at fixed numbers of function evaluations."""

import math

import keras
import numpy as np

from deq_keras.layers import SolveScope


def losses_at_budgets(model, layer, segments, budgets):
    """Measures the loss of a text at each budget.

    The trained solver's tolerance applies, so solves may use less than the budget.

    Args:
        model: a `NextTokenLossModel`.
        layer: its `DEQ` layer.
        segments: dataset of examples, in their order.
        budgets: list of ints, each a `max_iter`.

    Returns:
        List of dicts of `budget`, `loss` (nats a token), `perplexity`, and means over
        the samples of `residual`, `evaluations` and the share `converged`.
    """
    model.compile(keras.optimizers.SGD())
    rows = []
    for budget in budgets:
        with SolveScope(max_iter=budget):
            logs = model.evaluate(segments, verbose=0, return_dict=True)
        statistics = ("residual", "evaluations", "converged")
        rows.append(
            {
                "budget": budget,
                **_loss(logs),
                **{name: logs[f"{layer.name}_{name}"] for name in statistics},
            }
        )
    return rows


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
    """Measures the loss of a text under explicit layers, as a row of that budget."""
    model.compile(keras.optimizers.SGD())
    logs = model.evaluate(segments, verbose=0, return_dict=True)
    statistics = {"residual": None, "evaluations": num_layers, "converged": None}
    return {"budget": num_layers, **_loss(logs), **statistics}


def _loss(logs):
    # The mean over tokens. Keras' mean loss weighs a short last segment as a whole one.
    return {"loss": math.log(logs["perplexity"]), "perplexity": logs["perplexity"]}
