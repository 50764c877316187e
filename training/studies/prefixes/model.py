"""The model of the study of prefixes, and the measurements of a trained one."""

import math

import keras
import numpy as np

from deq_keras.layers import RecallCell
from deq_keras.solvers import SolveRequest

from ...data.reasoning import PrefixSums, solved
from ..study_runs import equilibrium_layer


def build(config, seed):
    """Returns the functional model bits -> DEQ -> two logits at each position.

    Args:
        config: The `PrefixesConfig`.
        seed: Integer. Seed of the initial weights and of training.

    Raises:
        InputError: If a component of the layer rejects an argument.
    """
    # Set here, because initializers draw from the global generator.
    keras.utils.set_random_seed(seed)
    layer = equilibrium_layer(
        RecallCell(config.units, 1, config.activation, name="cell"),
        config.equilibrium,
        seed,
    )
    bits = keras.Input((None, 1), name="bits")
    logits = keras.layers.Dense(2, name="parity")(layer(bits))
    return keras.Model(bits, logits, name="prefixes")


def measure(model, config, seed):
    """Solves strings of several lengths with several budgets.

    Args:
        model: A trained model.
        config: A `MeasurementConfig`.
        seed: Integer. Seed of the run. `[seed, length]` seeds the strings, which are
            independent of the training strings.

    Returns:
        A list of one dict for each length and budget: `length`, `budget`, `right`, the
        share of strings in % all of whose parities are, `evaluations` and `residual`,
        the largest relative residual of a string, or `None` where it is not finite.
    """
    rows = []
    for length in config.lengths:
        generator = np.random.default_rng([seed, length])
        strings = PrefixSums().examples(generator, config.examples, length)
        for budget in config.budgets:
            rows.append(
                {
                    "length": length,
                    "budget": budget,
                    **_solved(model, strings, budget, config.batch_size),
                }
            )
    return rows


def _solved(model, strings, budget, batch_size):
    layer, classify = model.get_layer("deq"), model.get_layer("parity")
    answers, evaluations, residuals = [], [], []
    for first in range(0, len(strings.inputs), batch_size):
        bits = strings.inputs[first : first + batch_size]
        solution = layer.solve(bits, SolveRequest(max_iter=budget))
        answers.append(np.argmax(classify(solution.value), axis=-1))
        evaluations.append(solution.num_evaluations)
        residuals.append(solution.residual)
    residual = float(np.max(np.concatenate(residuals)))
    return {
        "right": 100.0 * float(np.mean(solved(np.concatenate(answers), strings))),
        "evaluations": float(np.mean(np.concatenate(evaluations))),
        "residual": residual if math.isfinite(residual) else None,
    }
