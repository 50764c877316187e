"""The interface between a run and one variant of an experiment."""

import functools
import math

import numpy as np
import tensorflow as tf

import deq_keras

from .. import registry
from ..errors import InputError
from ..evaluation.budgets import (
    equilibrium,
    explicit_predictor,
    measure_at_budgets,
    predictor,
    split,
)
from .checkpoint import CompiledVariant
from .distribution import OneDevice
from .feed import ArrayFeed, first_rows


class Job:
    """One variant of an experiment: how its model is built, trained and measured.

    An experiment implements four methods, and names the `Feed` of its data:

    1. `load_data` returns the data, which variants share.
    2. `build_model` returns a new model.
    3. `objective` returns the loss and the metrics.
    4. `measure` scores the outputs of a model or of an export at budgets.

    It overrides others where their defaults do not fit:

    5. `wrap_model` and `make_callbacks` change the training.
    6. `evaluate` returns the contents of `evaluation.json`, by default the rows of
       `measure`, and `measure_model` runs the model.
    7. `load_reference` and `prepare_export` are for single commands.

    Args:
        config: A `VariantsConfig` with `data` and `evaluation`.
        load: Function without arguments that returns the result of `load_data`, which
            runs may share. Defaults to `None`, a call of `load_data`.
        folder: `pathlib.Path` of the run, for its samples and for further files of an
            evaluation. Defaults to `None`: nothing is saved.
        distribution: Distribution of the training. `None` for one device.

    Attributes:
        feed_class: Class of `feed`.
        monitor: String. Key of the logs that determines the best epoch.
        mode: String. `"max"` or `"min"`, the better of two monitored values.
        counts_failures: Boolean. Whether a run with a non-finite loss or weights
            continues and counts as failed in its tables. Otherwise the run stops with
            an error.
        num_layers: Positive integer. Number of layers of an explicit network.
        feed: `Feed` of the run.
        compiled: `CompiledVariant` of the run. Runs with other seeds share it.
    """

    feed_class: type
    monitor: str
    mode = "max"
    counts_failures = False
    num_layers = 1

    def __init__(self, config, load=None, folder=None, distribution=None):
        self.config = config
        self.folder = folder
        self.distribution = distribution or OneDevice()
        load = load or functools.partial(self.load_data, config.data, folder)
        self.feed = self.feed_class(config, load, folder, self.distribution)
        self.compiled = CompiledVariant()

    @property
    def data(self):
        """The result of `load_data`."""
        return self.feed.data

    @classmethod
    def load_data(cls, config, folder):
        """Returns the data of a `config.data`. Variants with equal values share them.

        Args:
            config: The `data` of the config.
            folder: `pathlib.Path` of a run, which may contain saved data.
        """
        raise NotImplementedError

    # === Training ===

    def build_model(self):
        """Returns a new model."""
        raise NotImplementedError

    def wrap_model(self, model):
        """Returns the model on which to call `fit`: `model`, or a model around it."""
        return model

    def objective(self):
        """Returns the loss, the metrics and other arguments of `compile`, a dict."""
        raise NotImplementedError

    def make_callbacks(self, model):
        """Returns further callbacks. The history contains their logs."""
        del model
        return []

    # === Evaluation ===

    def measure(self, predict, budgets, model=None, data=None):
        """Scores outputs of examples at budgets; see `measure_at_budgets`.

        Args:
            predict: Function from inputs and a budget to outputs and statistics.
            budgets: List of positive integers.
            model: The model, whose input format the examples have. Defaults to `None`,
                the format of an export.
            data: Examples, as `Feed.read_problems` returns them. Defaults to `None`,
                the test examples.

        Returns:
            List of dicts with `budget`, the score of the experiment, `residual` and
            `evaluations`.
        """
        raise NotImplementedError

    def measure_model(self, model, budgets, data=None, tol=None):
        """Like `measure`, for a model.

        The only budget of explicit networks is the number of their layers.

        Args:
            model: The model.
            budgets: See `measure`.
            data: See `measure`.
            tol: Non-negative float. Tolerance of the solves. Defaults to `None`, the
                tolerance of the solver.
        """
        if equilibrium(model) is None:
            budgets = [self.num_layers]
            predict = explicit_predictor(model, self.num_layers)
        else:
            predict = self.compiled.once(model, "predict", lambda: predictor(model))
            predict = functools.partial(predict, tol=tol)
        return self.measure(predict, budgets, model, data)

    def evaluate(self, model, budgets):
        """Measures a model at each budget, and writes further files of the experiment.

        Returns:
            A dict of `budgets`, the rows, and of measurements that do not depend on a
            budget.
        """
        return {"budgets": self.measure_model(model, budgets)}

    # === Single commands ===

    def load_reference(self, state_dict):
        """Returns a model with the weights of the authors' code, to measure it.

        The weights determine its sizes, and the config its other settings.

        Args:
            state_dict: Dict from names to arrays.

        Raises:
            ValueError: If the state dict does not match the config.
        """
        del state_dict
        raise InputError(
            "No published checkpoint has the model of this config. Use `deq-keras "
            "import-checkpoint`, or give a .keras file. Received: "
            f"experiment={self.config.experiment!r}."
        )

    def prepare_export(self, model):
        """Returns the model to export, and samples of its requests."""
        return model, first_rows(self.feed.samples, 8)


def watch_equilibrium(model, inputs, max_iter):
    """Returns a list with the callback that monitors the equilibrium of a few inputs,
    or an empty list for explicit networks."""
    if equilibrium(model) is None:
        return []
    parts = split(model)
    return [
        deq_keras.callbacks.EquilibriumDiagnostics(
            parts.layer, lambda: parts.encode(inputs), max_iter
        )
    ]


class ArrayJob(Job):
    """One variant of a model of arrays in memory; see `Job` and `ArrayFeed`.

    An experiment implements `draw`, `build_model`, `loss` and `score`.

    Attributes:
        evaluation_batch_size: Positive integer. Batch size of `measure`.
        steps_per_execution: Positive integer. Training steps per call of a compiled
            function. Defaults to all steps of an epoch, which suits small models: their
            step takes less time than its dispatch. The phases in steps must be
            multiples of it.
    """

    feed_class = ArrayFeed
    monitor = "loss"
    mode = "min"
    counts_failures = True
    evaluation_batch_size = 256

    @classmethod
    def load_data(cls, config, folder):
        return functools.cache(functools.partial(cls.draw, config))

    @staticmethod
    def draw(config, seed):
        """Returns the training and the test data of a seed.

        Args:
            config: The `data` of the config.
            seed: Integer. Seed of the run.

        Returns:
            Two tuples `(inputs, targets)` of arrays, and further data of the
            experiment. Inputs may be a dict of arrays.
        """
        raise NotImplementedError

    @property
    def steps_per_execution(self):
        steps = (phase.steps or 0 for phase in self.config.phases)
        return math.gcd(self.feed.steps_per_epoch, *steps)

    def loss(self):
        """Returns the loss, a name or an object of Keras."""
        raise NotImplementedError

    def score(self, predictions, targets):
        """Returns the score of the experiment for arrays of predictions and targets."""
        raise NotImplementedError

    def objective(self):
        return {"loss": self.loss(), "steps_per_execution": self.steps_per_execution}

    def measure(self, predict, budgets, model=None, data=None):
        name = registry.find(self.config.experiment).score.name
        batches = tf.data.Dataset.from_tensor_slices(tuple(data or self.feed.test))
        # A score such as R^2 is not a mean over examples. Batches only collect outputs
        # and targets, and `score` reads all of them at once.
        return measure_at_budgets(
            predict,
            batches.batch(self.evaluation_batch_size),
            lambda *pair: dict(zip(("outputs", "targets"), pair, strict=True)),
            budgets,
            lambda batches: {
                name: float(
                    self.score(
                        np.concatenate([batch["outputs"] for batch in batches]),
                        np.concatenate([batch["targets"] for batch in batches]),
                    )
                )
            },
        )
