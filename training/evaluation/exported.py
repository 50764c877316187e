"""Exported models: their outputs at a budget, and the latencies of requests."""

import time
from typing import NamedTuple

import keras
import numpy as np

import deq_keras

from ..errors import InputError, reading

_NUM_REQUESTS = 20


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


class ExportedFile:
    """A model in a file that `export` wrote.

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
                f"A file of a model with an equilibrium is needed. {path} accepts no "
                "budget of evaluations: evaluate the run to see the score of its model."
            )

    def predict(self, inputs, budget):
        """Returns outputs and statistics; see `measure_at_budgets`."""
        if self._first is None:
            self._first = inputs
        limit = self._serve.max_iter_limit
        if limit is not None and budget > limit:
            raise InputError(
                f"{self._path} serves budgets up to {limit}. Give smaller --budgets, "
                "or export the run again with larger budgets in its config. Received: "
                f"a budget of {budget}."
            )
        with self._reading():
            arrays = keras.tree.map_structure(np.asarray, inputs)
            response = self._serve(arrays, max_iter=budget)
            return response["outputs"], {
                "evaluations": response["evaluations"],
                "residual": response["residual"],
                "converged": response["status"] == deq_keras.solvers.CONVERGED,
            }

    def latencies(self, budgets):
        """Times requests at each budget, all with the first inputs of `predict`.

        Args:
            budgets: List of positive integers.

        Returns:
            A `Latencies`. The first request of each budget is not timed.
        """
        quantiles = {}
        for budget in budgets:
            self.predict(self._first, budget)
            seconds = []
            for _ in range(_NUM_REQUESTS):
                start = time.perf_counter()
                self.predict(self._first, budget)
                seconds.append(time.perf_counter() - start)
            quantiles[budget] = np.quantile(seconds, [0.5, 0.95]).tolist()
        num_samples = len(keras.tree.flatten(self._first)[0])
        return Latencies(_NUM_REQUESTS, num_samples, quantiles)

    def _reading(self):
        return reading(self._path, "Write it again with deq-keras export.")
