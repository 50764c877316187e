"""The outputs of a model at a budget, and scores at several budgets."""

import dataclasses
import functools
import sys
import time
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

import deq_keras
from deq_keras.solvers import SolveRequest

from ..errors import InputError, reading

_NUM_REQUESTS = 20


@dataclasses.dataclass(frozen=True, eq=False)
class EncoderSolverHead:
    """A model split into its equilibrium layer and the parts before and after it.

    Attributes:
        encode: Function from inputs to the inputs of the layer.
        layer: The `DEQ` layer.
        classify: Function from an equilibrium to outputs.
    """

    encode: Any
    layer: Any
    classify: Any

    def answer(self):
        """Returns a function from inputs and a budget to outputs and statistics.

        The statistics are a dict of `evaluations`, `residual` and `converged`, each an
        array with one entry per sample. The function is traced once.
        """

        def answer(inputs, budget):
            tol = self.layer.solver.tol
            return self._answer(inputs, tf.constant(budget), tf.constant(tol or 0.0))

        return answer

    @functools.cached_property
    def _answer(self):
        # Budgets and tolerances are tensors, so that one trace serves all of them.
        @tf.function(reduce_retracing=True, autograph=False)
        def answer(inputs, budget, tol):
            request = SolveRequest(max_iter=budget, tol=tol)
            solution = self.layer.solve(self.encode(inputs), request)
            return self.classify(solution.value), {
                "evaluations": solution.num_evaluations,
                "residual": solution.residual,
                "converged": tf.equal(solution.status, deq_keras.solvers.CONVERGED),
            }

        return answer


def split_model(model):
    """Returns a functional model as an `EncoderSolverHead` with shared weights."""
    return EncoderSolverHead(*deq_keras.diagnostics.split_model(model))


def explicit_answer(model, num_layers):
    """Returns the function `answer` of an explicit network, whose only budget is the
    number of its layers; see `measure_at_budgets`."""

    def answer(inputs, budget):
        del budget
        return model(inputs, training=False), {"evaluations": [num_layers]}

    return answer


def split_reasoner(model):
    """Returns a `ReasonerTagger` as an `EncoderSolverHead` with shared weights."""
    backbone = model.backbone
    return EncoderSolverHead(backbone.encode, backbone.deq, model.head)


class Latencies(NamedTuple):
    """The latencies of requests to an exported model.

    Attributes:
        num_requests: Integer. Number of timed requests per budget.
        num_samples: Integer. Number of samples in a request.
        quantiles: Dict from budgets to the median and the 95th percentile in seconds.
    """

    num_requests: int
    num_samples: int
    quantiles: dict


class ExportedModel:
    """An exported model with the interface of an `EncoderSolverHead`.

    Args:
        path: Path of the file or folder.

    Raises:
        InputError: If the model cannot be loaded, or accepts no budget.
    """

    def __init__(self, path):
        self._path = path
        self._first = None
        try:
            with self._reading():
                self._serve = deq_keras.serving.load(path)
        except ImportError as error:
            raise InputError(str(error)) from error
        if "max_iter" not in self._serve.options:
            raise InputError(
                f"--exported needs a file of a model with an equilibrium. {path} "
                "accepts no budget of evaluations: leave --exported out to see the "
                "score of the model."
            )

    def answer(self):
        """See `EncoderSolverHead.answer`."""

        def answer(inputs, budget):
            if self._first is None:
                self._first = inputs
            limit = self._serve.max_iter_limit
            if limit is not None and budget > limit:
                raise InputError(
                    f"{self._path} serves budgets up to {limit}. Give smaller "
                    "--budgets, or export the run again with larger budgets in its "
                    f"config. Received: a budget of {budget}."
                )
            with self._reading():
                arrays = keras.tree.map_structure(np.asarray, inputs)
                answered = self._serve(arrays, max_iter=budget)
                return answered["outputs"], {
                    "evaluations": answered["evaluations"],
                    "residual": answered["residual"],
                    "converged": answered["status"] == deq_keras.solvers.CONVERGED,
                }

        return answer

    def latencies(self, budgets):
        """Times requests at each budget, all with the first inputs of `answer`.

        Args:
            budgets: List of positive integers.

        Returns:
            A `Latencies`. The first request of each budget is not timed.
        """
        answer, quantiles = self.answer(), {}
        for budget in budgets:
            answer(self._first, budget)
            seconds = []
            for _ in range(_NUM_REQUESTS):
                start = time.perf_counter()
                answer(self._first, budget)
                seconds.append(time.perf_counter() - start)
            quantiles[budget] = np.quantile(seconds, [0.5, 0.95]).tolist()
        num_samples = len(keras.tree.flatten(self._first)[0])
        return Latencies(_NUM_REQUESTS, num_samples, quantiles)

    def _reading(self):
        return reading(self._path, "Write it again with deq-keras export.")


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


def measure_at_budgets(answer, batches, score, budgets, summarize=None):
    """Scores a model at several budgets of function evaluations.

    Shows its progress if the output is a terminal. Each budget is a new solve with the
    model's own solver and tolerance, started from the cell's initial state.

    Args:
        answer: Function from inputs and a budget to outputs and statistics, such as
            `EncoderSolverHead.answer()`.
        batches: List or dataset of `(inputs, targets)`, whose length is known.
        score: Function from outputs and targets to a dict of arrays.
        budgets: List of positive integers, each a `max_iter`.
        summarize: Optional function from the list of the batches' dicts to a dict of
            scores. Defaults to `None`, the means over all entries.

    Returns:
        A list of one dict per budget: `budget`; the scores; means over the samples of
        `evaluations` (fewer than the budget if the tolerance was met) and of the
        `residual`; the fraction `converged`. The last two are `None` without an
        equilibrium.
    """
    rows, bar = [], BudgetBar(budgets, len(batches))
    for budget in budgets:
        scores, solves = [], []
        for inputs, targets in batches:
            outputs, statistics = answer(inputs, budget)
            scores.append(score(outputs, targets))
            solves.append(statistics)
            bar.add(budget)
        summary = {**(summarize or means)(scores), **means(solves)}
        rows.append({"budget": budget, "residual": None, "converged": None, **summary})
    return rows


def means(measured):
    """Returns a dict with the mean of each array over all entries.

    Args:
        measured: List of dicts of arrays with one entry per sample.
    """
    names = measured[0]
    values = {name: [np.asarray(one[name]) for one in measured] for name in names}
    return {name: float(np.concatenate(parts).mean()) for name, parts in values.items()}
