"""Compiled models that the runs of a variant with different seeds share."""

import contextlib

from ..files import saved_model
from . import checkpoint


class CompiledVariant:
    """The models of a variant, with the functions that have been traced for them.

    Tracing a model can take longer than its training. Runs that differ only in their
    seed have the same graphs, and a seed affects only variables. Therefore a run
    assigns its variables to the model of the run with the previous seed.

    Attributes:
        span: The `PhaseSpan` that the trained model is compiled for, or `None`.
    """

    def __init__(self):
        self.span = None
        self._trained = None
        self._loaded = None
        self._model = None
        self._functions = {}

    def trained(self, model, optimizer, trainer):
        """Returns the model, the optimizer and the trainer of the first run, with the
        state of the arguments. In the first run, keeps and returns the arguments."""
        if self._trained is None:
            self._trained = model, optimizer, trainer
        else:
            _, earlier_optimizer, earlier_trainer = self._trained
            _assign(
                checkpoint.state_variables(earlier_trainer, earlier_optimizer),
                checkpoint.state_variables(trainer, optimizer),
            )
        return self._trained

    def load(self, path, remedy):
        """Returns the model of a `.keras` file; see `saved_model.load`.

        A later file assigns its state to the model of the first.
        """
        model = saved_model.load(path, remedy)
        if self._loaded is None:
            self._loaded = model
        else:
            _assign(self._loaded.variables, model.variables)
        return self._loaded

    def once(self, model, name, make):
        """Returns the result of `make`, which is called once per model and name.

        Discards the results of the previous model.
        """
        if self._model is not model:
            self._model, self._functions = model, {}
        if name not in self._functions:
            self._functions[name] = make()
        return self._functions[name]


def _assign(targets, sources):
    for target, source in zip(targets, sources, strict=True):
        target.assign(source.numpy())


@contextlib.contextmanager
def compiled_once(jobs):
    """Returns a context in which jobs that differ only in their seed share models.

    Args:
        jobs: List of `Job`s.
    """
    shared = CompiledVariant()
    for job in jobs:
        job.compiled = shared
    yield
    # Frees the models.
    for job in jobs:
        job.compiled = CompiledVariant()
