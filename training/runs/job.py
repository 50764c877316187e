"""The interface between a run and one variant of an experiment."""

import functools
import math

import numpy as np
import tensorflow as tf
from keras import tree

import deq_keras

from .. import registry
from ..data.pipeline import (
    array_batches,
    evaluation_batches,
    sample,
    steps_per_epoch,
    training_batches,
)
from ..errors import InputError, config_errors, reading
from ..evaluation.budgets import (
    equilibrium,
    explicit_predictor,
    measure_at_budgets,
    predictor,
)
from ..files.atomic_file import replacing
from .checkpoint import CompiledVariant
from .distribution import OneDevice
from .optimizers import build_optimizer
from .phases import num_epochs, phase_spans

SAMPLES = "samples.npz"


class Job:
    """One variant of an experiment: its model, data, training and evaluation.

    An experiment implements these methods:

    1. `load_data` returns the data, which variants share.
    2. `build_model` returns a new model.
    3. `compile` sets the loss and the metrics.
    4. `feed` returns the arguments of `fit`, and `steps_per_epoch` their number.
    5. `select_samples` returns a few inputs for exports and diagnoses.
    6. `measure` scores the outputs of a model or of an export at budgets.

    It overrides one more if its default does not fit:

    7. `evaluate` returns the contents of `evaluation.json`, by default the rows of
       `measure`.

    The remaining methods are for single commands, such as `tune` and `export`.

    Args:
        config: A `VariantsConfig` with `data` and `evaluation`.
        load: Function without arguments that returns the result of `load_data`. It is
            called at the first use of `data`; exports and diagnoses do not need data.
        folder: `pathlib.Path` of the run, for its samples and for further files of an
            evaluation. Defaults to `None`: nothing is saved.
        distribution: Distribution of the training. `None` for one device.

    Attributes:
        monitor: String. Key of the logs that determines the best epoch.
        mode: String. `"max"` or `"min"`, the better of two monitored values.
        batch_sizes: Dict from config keys to the sizes of the batches of `fit`, which
            several devices divide. `None` for a job that supports only one device.
        counts_failures: Boolean. Whether a run with a non-finite loss or weights
            continues and counts as failed in its tables. Otherwise the run stops with
            an error.
        num_layers: Positive integer. Number of layers of an explicit network.
        compiled: `CompiledVariant` of the run. Runs with other seeds share it.
    """

    monitor: str
    mode = "max"
    batch_sizes = None
    counts_failures = False
    num_layers = 1

    def __init__(self, config, load, folder=None, distribution=None):
        self.config = config
        self._load = load
        self.folder = folder
        self.distribution = distribution or OneDevice()
        self.compiled = CompiledVariant()

    # === Data and model ===

    @functools.cached_property
    def data(self):
        """The result of `load_data`."""
        return self._load()

    @staticmethod
    def load_data(config, folder):
        """Returns the data of a `config.data`. Variants with equal values share them.

        Args:
            config: The `data` of the config.
            folder: `pathlib.Path` of a run, which may contain saved data.
        """
        raise NotImplementedError

    def build_model(self):
        """Returns a new model."""
        raise NotImplementedError

    def build(self):
        """Returns a model, an optimizer and the `PhaseSpan`s of a run."""
        config, model = self.config, self.build_model()
        spans = phase_spans(config, self.steps_per_epoch)
        optimizer = build_optimizer(
            config.optimizer,
            spans[-1].steps.stop,
            self.steps_per_epoch,
            config.precision,
        )
        return model, optimizer, spans

    def split(self, model):
        """Returns the `ModelParts` of a model with one `DEQ` layer."""
        return deq_keras.diagnostics.split_model(model)

    # === Training ===

    @property
    def steps_per_epoch(self):
        """Number of training steps of a whole epoch."""
        raise NotImplementedError

    @property
    def num_epochs(self):
        """Number of epochs of all phases."""
        # Only a phase in steps needs the data.
        return sum(
            num_epochs(phase, lambda: self.steps_per_epoch)
            for phase in self.config.phases
        )

    def wrap_model(self, model):
        """Returns the model on which to call `fit`: `model`, or a model around it."""
        return model

    def compile(self, model, optimizer):
        """Compiles a model or its wrapper; the optimizer keeps its state."""
        raise NotImplementedError

    def feed(self, steps):
        """Returns the arguments of `fit` for a `range` of training steps, counted from
        the start of the run: the data and the steps of an epoch.

        If the job supports several devices, `distribution.batches` returns the data.
        """
        raise NotImplementedError

    def make_callbacks(self, model):
        """Returns further callbacks. The history contains their logs."""
        del model
        return []

    # === Samples ===

    def select_samples(self):
        """Returns the first `evaluation.num_samples` held-out inputs."""
        raise NotImplementedError

    @functools.cached_property
    def sample_inputs(self):
        """Array `(num_samples, ...)` of the inputs that exports and diagnoses use, or a
        dict of arrays.

        Reads them from the folder of the run or, without saved samples, from the data.
        """
        path = None if self.folder is None else self.folder / SAMPLES
        if path is None or not path.exists():
            return tree.map_structure(np.asarray, self.select_samples())
        remedy = "Remove it: the next command reads the samples from the data again."
        with reading(path, remedy), path.open("rb") as file:
            saved = dict(np.load(file))
        return saved.get("inputs", saved)

    def batch_samples(self, model):
        """Returns batches to diagnose, in the input format of `encode`."""
        del model
        return [self.sample_inputs]

    def save_assets(self):
        """Saves the data that later commands need into the folder of the run."""
        path = self.folder / SAMPLES
        if not path.exists():
            with replacing(path) as temporary:
                inputs = self.sample_inputs
                named = inputs if isinstance(inputs, dict) else {"inputs": inputs}
                np.savez_compressed(temporary, **named)

    # === Evaluation ===

    def measure(self, predict, budgets, model=None, data=None):
        """Scores outputs of examples at budgets; see `measure_at_budgets`.

        Args:
            predict: Function from inputs and a budget to outputs and statistics.
            budgets: List of positive integers.
            model: The model, whose input format the examples have. Defaults to `None`,
                the format of an export.
            data: Examples, as `read_problems` returns them. Defaults to `None`, the
                test examples.

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

    def read_problems(self, path):
        """Returns the problems of a user's file, the `data` of `measure`."""
        raise InputError(
            f"The experiment {self.config.experiment} reads no files of problems. "
            f"Received: data={path}."
        )

    def test_inputs(self, model):
        """Returns a dict from labels of groups of test examples to their inputs, to
        tune the solver of a model."""
        del model
        raise InputError(
            f"Runs of the experiment {self.config.experiment} are not tuned: their "
            "outputs are not classes."
        )

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

    # === Export ===

    def prepare_export(self, model):
        """Returns the model to export, and samples of its requests."""
        return model, first_rows(self.sample_inputs, 8)


def watch_equilibrium(job, model, inputs):
    """Returns a list with the callback that monitors the equilibrium of a few inputs,
    or an empty list for explicit networks."""
    if equilibrium(model) is None:
        return []
    parts, max_iter = job.split(model), job.config.evaluation.max_iter
    return [
        deq_keras.callbacks.EquilibriumDiagnostics(
            parts.layer, lambda: parts.encode(inputs), max_iter
        )
    ]


def first_rows(inputs, count):
    """Returns the first samples of an array or of a dict of arrays."""
    return tree.map_structure(lambda array: array[:count], inputs)


def batch_sizes(data):
    """Returns the `Job.batch_sizes` of the `data` of a config."""
    names = ("batch_size", "evaluation_batch_size")
    return {f"data.{name}": getattr(data, name) for name in names}


class ImageJob(Job):
    """One variant of a model of images; see `Job`.

    `load_data` returns data with the splits `training`, `validation` and `test`. The
    config has `data.batch_size`, `data.steps_per_epoch` and
    `data.evaluation_batch_size`.
    """

    @property
    def batch_sizes(self):
        return batch_sizes(self.config.data)

    @property
    def steps_per_epoch(self):
        num_steps = steps_per_epoch(
            self.data.training,
            self.config.data.batch_size,
            self.distribution.drops_remainder,
        )
        # A step of replicas needs a full batch.
        return num_steps and (self.config.data.steps_per_epoch or num_steps)

    @property
    def augmentation(self):
        """Returns the augmentation config that the transform of the images takes."""
        return self.config.data.augmentation

    def feed(self, steps):
        split, size = self.data.validation, self.config.data.evaluation_batch_size

        def training(share):
            return training_batches(
                self.data.training,
                self.config.data.batch_size,
                self.augmentation,
                self.config.seed,
                steps,
                self.distribution.drops_remainder,
                share,
            )

        return {
            "x": self.distribution.batches(training),
            "validation_data": self.distribution.batches(
                lambda share: evaluation_batches(split, size, share)
            ),
            "steps_per_epoch": self.steps_per_epoch,
            "validation_steps": self.distribution.validation_steps(len(split), size),
        }

    def batches(self, model, split):
        """Returns the batches of a split in order, in the model's input format."""
        batches = evaluation_batches(split, self.config.data.evaluation_batch_size)
        preprocessor = getattr(model, "preprocessor", None)
        return batches if preprocessor is None else batches.map(preprocessor)

    def select_samples(self):
        return sample(self.data.test, self.config.evaluation.num_samples)

    def batch_samples(self, model):
        size = self.config.data.evaluation_batch_size
        preprocessor = getattr(model, "preprocessor", None) or (lambda images: images)
        for start in range(0, len(self.sample_inputs), size):
            yield preprocessor(self.sample_inputs[start : start + size])


class ArrayJob(Job):
    """One variant of a functional model with a `DEQ` layer `deq`; see `Job`.

    `load_data` returns a function from a seed to the training and the test data, each a
    tuple `(inputs, targets)` of arrays; inputs may be a dict of arrays. The config has
    `data.batch_size`.

    Attributes:
        evaluation_batch_size: Positive integer. Batch size of `measure`.
        steps_per_execution: Positive integer. Training steps per call of a compiled
            function. Defaults to all steps of an epoch, which suits small models: their
            step takes less time than its dispatch. The phases in steps must be
            multiples of it.
    """

    monitor = "loss"
    mode = "min"
    counts_failures = True
    evaluation_batch_size = 256

    @property
    def training(self):
        """Returns the training data of the seed of the run."""
        return self.data(self.config.seed)[0]

    @property
    def tested(self):
        """Returns the test data of the seed of the run."""
        return self.data(self.config.seed)[1]

    @property
    def steps_per_epoch(self):
        return math.ceil(len(self.training[-1]) / self.config.data.batch_size)

    @property
    def steps_per_execution(self):
        steps = (phase.steps or 0 for phase in self.config.phases)
        return math.gcd(self.steps_per_epoch, *steps)

    def loss(self):
        """Returns the loss, a name or an object of Keras."""
        raise NotImplementedError

    def score(self, predictions, targets):
        """Returns the score of the experiment for arrays of predictions and targets."""
        raise NotImplementedError

    def compile(self, model, optimizer):
        model.compile(
            optimizer,
            self.loss(),
            jit_compile=self.config.jit_compile,
            steps_per_execution=self.steps_per_execution,
        )

    def feed(self, steps):
        size, seed = self.config.data.batch_size, self.config.seed
        return {
            "x": array_batches(self.training, size, seed, steps),
            "steps_per_epoch": self.steps_per_epoch,
        }

    def select_samples(self):
        return first_rows(self.tested[0], self.config.evaluation.num_samples)

    def measure(self, predict, budgets, model=None, data=None):
        name = registry.find(self.config.experiment).score.name
        batches = tf.data.Dataset.from_tensor_slices(tuple(data or self.tested))
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


def in_segments(model, examples, batch_size, config):
    """Returns the `ContinuousBatchingModel` that trains a model in segments.

    Args:
        model: A built `keras.Model` that calls one equilibrium layer.
        examples: `(x, y)` or `(x, y, sample_weight)` of `fit`, arrays or specs.
        batch_size: Positive integer. Number of fresh samples per training step.
        config: A `SegmentsConfig`.

    Raises:
        InputError: If the config does not fit the batches or the model.
    """
    if config.in_progress <= batch_size:
        raise InputError(
            "`segments.in_progress` must be larger than a batch, the samples that "
            f"every training step admits. Received: in_progress={config.in_progress}, "
            f"batch_size={batch_size}."
        )
    with config_errors("segments"):
        return deq_keras.models.ContinuousBatchingModel(
            model,
            examples,
            config.in_progress,
            config.max_segments,
            config.finished,
            config.inherited,
        )
