"""The interface between a run and one variant of an experiment."""

import functools
import pathlib
import tempfile

import keras
import numpy as np

import deq_keras

from ..data.pipeline import evaluation_batches, sample, steps_per_epoch
from ..errors import InputError, config_errors, reading
from ..evaluation.diagnose import Diagnosis
from ..files.atomic_file import replacing
from .compiled import CompiledVariant
from .distribution import OneDevice
from .phases import phase_spans

SAMPLES = "samples.npz"


class Job:
    """One variant of an experiment: its model, data, training and evaluation.

    Args:
        config: A `VariantsConfig` with `data` and `evaluation`.
        load: Function without arguments that returns the result of `load_data`. It is
            called at the first use of `data`; exports and diagnoses do not need data.
        folder: `pathlib.Path` of the run, for its samples and for further files of an
            evaluation. Defaults to `None`: nothing is saved.
        distribution: Distribution of the training. `None` for one device.

    Attributes:
        monitor: String. Key of the logs that determines the best epoch.
        is_better: Function of two monitored values; whether the first is better.
        batch_sizes: Dict from config keys to the sizes of the batches of `fit`, which
            several devices divide. `None` for a job that supports only one device.
        counts_failures: Boolean. Whether a run with a non-finite loss or weights
            continues and counts as failed in its tables. Otherwise the run stops with
            an error.
        compiled: `CompiledVariant` of the run. Runs with other seeds share it.
    """

    monitor: str
    is_better: staticmethod
    batch_sizes = None
    counts_failures = False

    def __init__(self, config, load, folder=None, distribution=None):
        self.config = config
        self._load = load
        self.folder = folder
        self.distribution = distribution or OneDevice()
        self.compiled = CompiledVariant()

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

    @property
    def steps_per_epoch(self):
        """Number of training steps of an epoch."""
        raise NotImplementedError

    def build_model(self):
        """Returns a new model."""
        raise NotImplementedError

    def build(self):
        """Returns a model, an optimizer and the `PhaseSpan`s of a run."""
        config, model = self.config, self.build_model()
        spans = phase_spans(config)
        optimizer = build_optimizer(
            config.optimizer,
            spans[-1].epochs.stop,
            self.steps_per_epoch,
            config.precision,
        )
        return model, optimizer, spans

    def trainer(self, model):
        """Returns the model on which to call `fit`: `model`, or a model around it."""
        return model

    def equilibrium(self, model):
        """Returns the `DEQ` layer of a model, or `None` for explicit layers."""
        raise NotImplementedError

    def compile(self, model, optimizer):
        """Compiles a model or its trainer; the optimizer keeps its state."""
        raise NotImplementedError

    def fit_arguments(self, epochs):
        """Returns the arguments of `fit` for a `range` of epochs: data and steps.

        If the job supports several devices, `distribution.batches` returns the data.
        """
        raise NotImplementedError

    def callbacks(self, model):
        """Returns further callbacks. The history contains their logs."""
        del model
        return []

    def diagnostics(self, model, inputs):
        """Returns the callback that monitors the equilibrium of a few inputs."""
        opened = self.split(model)
        return deq_keras.callbacks.EquilibriumDiagnostics(
            opened.layer,
            lambda: opened.encode(inputs),
            self.config.evaluation.max_iter,
        )

    def keep(self):
        """Saves the data that later commands need into the folder of the run."""
        path = self.folder / SAMPLES
        if not path.exists():
            with replacing(path) as temporary:
                np.savez_compressed(temporary, inputs=self.sample_inputs)

    @functools.cached_property
    def sample_inputs(self):
        """Array `(num_samples, ...)` of the inputs that exports and diagnoses use.

        Reads them from the folder of the run or, without saved samples, from the data.
        """
        path = None if self.folder is None else self.folder / SAMPLES
        if path is None or not path.exists():
            return np.asarray(self.first_inputs())
        remedy = "Remove it: the next command reads the samples from the data again."
        with reading(path, remedy), path.open("rb") as file:
            return np.load(file)["inputs"]

    def first_inputs(self):
        """Returns the first `evaluation.num_samples` held-out inputs."""
        raise NotImplementedError

    def evaluate(self, model, budgets):
        """Measures a model at each budget. Returns a list of dicts with `budget`, the
        score of the experiment, `residual` and `evaluations`."""
        raise NotImplementedError

    def evaluate_at_tolerance(self, model, tol, budget):
        """Measures a model at another tolerance of its solver, as `evaluate` does.

        Writes nothing. Returns the row of the budget.
        """
        solver = self.equilibrium(model).solver
        own, folder = solver.tol, self.folder
        with tempfile.TemporaryDirectory() as temporary:
            solver.tol, self.folder = tol, pathlib.Path(temporary)
            try:
                return self.evaluate(model, [budget])[-1]
            finally:
                solver.tol, self.folder = own, folder

    def facts(self, model):
        """Returns a dict of further measurements, which do not depend on a budget."""
        del model
        return {}

    def split(self, model):
        """Returns the `EncoderSolverHead` of a model with an equilibrium."""
        raise NotImplementedError

    def opened(self, model):
        """Like `split`, but returns the same object for the same model."""
        return self.compiled.once(model, "split", lambda: self.split(model))

    def samples(self, model):
        """Returns batches to diagnose, in the input format of `encode`."""
        del model
        return [self.sample_inputs]

    def diagnose(self, model):
        """Returns the measurements of `diagnose` for a model's equilibrium."""
        opened, max_iter = self.opened(model), self.config.evaluation.max_iter
        diagnosis = self.compiled.once(
            model,
            "diagnosis",
            lambda: Diagnosis(opened.layer, opened.encode, max_iter),
        )
        return diagnosis.of(self.samples(model))

    def evaluate_export(self, exported, budgets):
        """Like `evaluate`, for an `ExportedModel`."""
        raise NotImplementedError

    def evaluate_file(self, model, path, budgets):
        """Like `evaluate`, on the problems of a user's file."""
        del model, budgets
        raise InputError(
            f"The experiment {self.config.experiment} reads no files of problems. "
            f"Received: data={path}."
        )

    def groups(self, model):
        """Returns the test data as a list of `Group`, to audit or tune a model with an
        equilibrium."""
        del model
        raise InputError(
            f"Runs of the experiment {self.config.experiment} are not audited or "
            "tuned: it does not say which answers are right."
        )

    def servable(self, model):
        """Returns the model to export, and samples of its requests."""
        raise NotImplementedError

    def largest_budget(self, model):
        """Returns the largest budget that an export serves, or `None`."""
        layer = self.equilibrium(model)
        if layer is None:
            return None
        return max(layer.solver.max_iter, *self.config.evaluation.budgets)


def batch_sizes(data):
    """Returns the `Job.batch_sizes` of the `data` of a config."""
    names = ("batch_size", "evaluation_batch_size")
    return {f"data.{name}": getattr(data, name) for name in names}


class ImageJob(Job):
    """One variant of a model of images; see `Job`.

    Args:
        config: A config with `data.batch_size` and `data.evaluation_batch_size`.
        load: Function that returns data with the splits `training`, `validation` and
            `test`.
        folder: See `Job`.
        distribution: See `Job`.
    """

    @property
    def batch_sizes(self):
        return batch_sizes(self.config.data)

    @property
    def steps_per_epoch(self):
        return steps_per_epoch(
            self.data.training,
            self.config.data.batch_size,
            self.distribution.drops_remainder,
        )

    def training_batches(self, epochs, share):
        """Returns the stream of a `BatchShard` of the training batches of a `range` of
        epochs."""
        raise NotImplementedError

    def fit_arguments(self, epochs):
        split, size = self.data.validation, self.config.data.evaluation_batch_size
        return {
            "x": self.distribution.batches(
                lambda share: self.training_batches(epochs, share)
            ),
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

    def first_inputs(self):
        return sample(self.data.test, self.config.evaluation.num_samples)

    def samples(self, model):
        size = self.config.data.evaluation_batch_size
        preprocessor = getattr(model, "preprocessor", None) or (lambda images: images)
        for start in range(0, len(self.sample_inputs), size):
            yield preprocessor(self.sample_inputs[start : start + size])


def build_optimizer(config, num_epochs, steps_per_epoch, precision):
    """Returns the optimizer of an `OptimizerConfig` for a run of `num_epochs`."""
    warmup = round(config.warmup_epochs * steps_per_epoch)
    total = num_epochs * steps_per_epoch
    if warmup >= total:
        raise InputError(
            f"`optimizer.warmup_epochs` must be less than the {num_epochs} epochs of "
            f"all phases. Received: warmup_epochs={config.warmup_epochs}."
        )
    arguments = {
        "learning_rate": _schedule(config, warmup, total, steps_per_epoch),
        "weight_decay": config.weight_decay,
        "global_clipnorm": config.clip_norm,
    }
    if config.ema_momentum is not None:
        arguments |= {"use_ema": True, "ema_momentum": config.ema_momentum}
    if config.name == "sgd":
        optimizer = keras.optimizers.SGD(
            momentum=0.9, nesterov=config.nesterov, **arguments
        )
    else:
        optimizer = keras.optimizers.Adam(**arguments)
    if precision == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    return optimizer


def _schedule(config, warmup, total, steps_per_epoch):
    """Returns the learning rate of each of the steps of a run.

    A number if a callback changes it; see `learning_rates.callbacks`.
    """
    peak, last = config.learning_rate, config.final_learning_rate
    if warmup and config.schedule in ("plateau", "poly", "step"):
        raise InputError(
            f"`optimizer.warmup_epochs` must be 0 with the schedule `{config.schedule}`"
            f". Received: warmup_epochs={config.warmup_epochs}."
        )
    if config.schedule == "plateau":
        return peak  # A callback lowers it.
    if config.schedule == "inverse_square_root":
        if not warmup:
            raise InputError(
                "`optimizer.warmup_epochs` must be at least one step with the schedule "
                "`inverse_square_root`, which falls from its end. Received: "
                f"warmup_epochs={config.warmup_epochs}."
            )
        return peak  # A callback sets it in every step.
    if config.schedule == "step":
        boundaries = [round(epoch * steps_per_epoch) for epoch in config.decay_epochs]
        rates = [peak * config.decay_factor**i for i in range(len(boundaries) + 1)]
        # In Keras, the step at a boundary still has the previous rate.
        boundaries = [boundary - 1 for boundary in boundaries]
        return keras.optimizers.schedules.PiecewiseConstantDecay(boundaries, rates)
    if config.schedule == "poly":
        return keras.optimizers.schedules.PolynomialDecay(peak, total, last, power=0.9)
    if config.schedule == "constant":
        last = peak
    return keras.optimizers.schedules.CosineDecay(
        initial_learning_rate=0.0 if warmup else peak,
        decay_steps=total - warmup,
        alpha=last / peak,
        warmup_target=peak if warmup else None,
        warmup_steps=warmup,
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
    if config.in_search <= batch_size:
        raise InputError(
            "`segments.in_search` must be larger than a batch, the samples that every "
            f"training step admits. Received: in_search={config.in_search}, "
            f"batch_size={batch_size}."
        )
    with config_errors("segments"):
        return deq_keras.models.ContinuousBatchingModel(
            model,
            examples,
            config.in_search,
            config.max_segments,
            config.finished,
            config.inherited,
        )
