"""The data of a run, in the forms that training and commands read."""

import functools
import math

import numpy as np
from keras import tree

from ..data.pipeline import (
    array_batches,
    evaluation_batches,
    sample,
    steps_per_epoch,
    training_batches,
)
from ..errors import InputError, reading
from ..files.atomic_file import replacing

SAMPLES = "samples.npz"


class Feed:
    """The data of a run: batches of the training, and a few samples.

    Every kind of data implements `fit_arguments`, `steps_per_epoch` and
    `select_samples`. `test_inputs` is for `tune`, `read_problems` for
    `evaluate-problems`.

    Args:
        config: A `VariantsConfig` with `data` and `evaluation`.
        load: Function without arguments that returns the result of `Job.load_data`. It
            is called at the first use of `data`; exports and diagnoses do not need
            data.
        folder: `pathlib.Path` of the run, for its samples. `None` saves nothing.
        distribution: Distribution of the training.

    Attributes:
        batch_sizes: Dict from config keys to the sizes of the batches of `fit`, which
            several devices divide. `None` for data that support only one device.
    """

    batch_sizes = None

    def __init__(self, config, load, folder, distribution):
        self.config = config
        self._load = load
        self.folder = folder
        self.distribution = distribution

    @functools.cached_property
    def data(self):
        """The result of `Job.load_data`."""
        return self._load()

    @property
    def steps_per_epoch(self):
        """Number of training steps of a whole epoch."""
        raise NotImplementedError

    def fit_arguments(self, steps):
        """Returns the arguments of `fit` for a `range` of training steps, counted from
        the start of the run: the data and the steps of an epoch.

        Data for several devices come from `distribution.batches`.
        """
        raise NotImplementedError

    # === Samples ===

    def select_samples(self):
        """Returns the first `evaluation.num_samples` held-out inputs."""
        raise NotImplementedError

    @functools.cached_property
    def samples(self):
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
        """Returns batches to diagnose, in the input format of a model's encoder."""
        del model
        return [self.samples]

    def save(self):
        """Saves what later commands need of the data into the folder of the run."""
        path = self.folder / SAMPLES
        if not path.exists():
            with replacing(path) as temporary:
                inputs = self.samples
                named = inputs if isinstance(inputs, dict) else {"inputs": inputs}
                np.savez_compressed(temporary, **named)

    # === Single commands ===

    def test_inputs(self, model):
        """Returns a dict from labels of groups of test examples to their inputs, to
        tune the solver of a model."""
        del model
        raise InputError(
            f"Runs of the experiment {self.config.experiment} are not tuned. Expected: "
            "image classifiers or reasoners."
        )

    def read_problems(self, path):
        """Returns the problems of a user's file, the `data` of `Job.measure`."""
        raise InputError(
            f"The experiment {self.config.experiment} reads no files of problems. "
            f"Received: data={path}."
        )


def first_rows(inputs, count):
    """Returns the first samples of an array or of a dict of arrays."""
    return tree.map_structure(lambda array: array[:count], inputs)


def batch_sizes(data):
    """Returns the `Feed.batch_sizes` of the `data` of a config."""
    names = ("batch_size", "evaluation_batch_size")
    return {f"data.{name}": getattr(data, name) for name in names}


class ImageFeed(Feed):
    """Labeled images; see `Feed`.

    `Job.load_data` returns data with the splits `training`, `validation` and `test`.
    The config has `data.batch_size`, `data.steps_per_epoch` and
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
        # Zero if replicas never get a full batch: `Replicas.check` refuses it.
        return num_steps and (self.config.data.steps_per_epoch or num_steps)

    @property
    def augmentation(self):
        """The augmentation config that the transform of the images takes."""
        return self.config.data.augmentation

    def fit_arguments(self, steps):
        split, size = self.data.validation, self.config.data.evaluation_batch_size
        training = training_batches(
            self.data.training,
            self.config.data.batch_size,
            self.augmentation,
            self.config.seed,
            steps,
            self.distribution.drops_remainder,
        )
        validation = evaluation_batches(split, size)
        return {
            "x": self.distribution.batches(training),
            "validation_data": self.distribution.batches(validation),
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
        for start in range(0, len(self.samples), size):
            yield preprocessor(self.samples[start : start + size])


class ArrayFeed(Feed):
    """Arrays in memory; see `Feed`.

    `Job.load_data` returns a function from a seed to the training and the test data;
    see `ArrayJob.draw`. The config has `data.batch_size`.
    """

    @property
    def training(self):
        """The training data of the seed of the run."""
        return self.data(self.config.seed)[0]

    @property
    def test(self):
        """The test data of the seed of the run."""
        return self.data(self.config.seed)[1]

    @property
    def steps_per_epoch(self):
        return math.ceil(len(self.training[-1]) / self.config.data.batch_size)

    def fit_arguments(self, steps):
        size, seed = self.config.data.batch_size, self.config.seed
        return {
            "x": array_batches(self.training, size, seed, steps),
            "steps_per_epoch": self.steps_per_epoch,
        }

    def select_samples(self):
        return first_rows(self.test[0], self.config.evaluation.num_samples)
