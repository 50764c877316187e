"""Training on one device: what a run does unless its config says otherwise."""

import contextlib

from ...data.pipeline import WHOLE
from ..data_wait import Stopwatch
from .preprocessing import Preprocessing


class OneDevice:
    """A single process on a single device, without a strategy.

    Attributes:
        drops_remainder: bool. Whether epochs of training leave out a smaller batch that
            may end them.
        is_chief: bool. Whether this process writes what a run is for.
        stopwatch: the `Stopwatch` of what `fit` reads.
    """

    drops_remainder = False
    is_chief = True

    def __init__(self):
        self.stopwatch = Stopwatch()
        self._preprocessed = Preprocessing()

    def check(self, job):
        """Raises `InputError` if a `Job` cannot be trained so."""
        del job
        self._preprocessed = Preprocessing()  # Of a model before.

    def scope(self):
        """Returns the context in which models, optimizers and their state are made."""
        return contextlib.nullcontext()

    def begin(self, model, optimizer):
        """Makes a new model and its optimizer train as one device would."""
        del optimizer
        self._preprocessed.take_over_from(model)

    def continue_from(self, model):
        """Completes the state of a model that was new, or restored."""

    def batches(self, make):
        """Returns what `fit` reads.

        Args:
            make: function of a `BatchShard` that returns the dataset of its rows of
                every batch.
        """
        return self.stopwatch.over(self._preprocessed(make(WHOLE)))

    def validation_steps(self, num_examples, batch_size):
        """Returns the argument of `fit`: `None` reads the data to their end."""
        del num_examples, batch_size

    def in_step(self):
        """Returns the context of what is done together with other workers."""
        return contextlib.nullcontext()

    def least(self, number):
        """Returns the least of the numbers that all workers give, an int."""
        return number
