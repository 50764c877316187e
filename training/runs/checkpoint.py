"""The state of a training run: checkpoints, and models that share it between runs."""

import contextlib
import json
import os
import sys
from typing import Any, NamedTuple

import keras
import numpy as np

from ..errors import InputError, reading
from ..files import saved_model
from ..files.atomic_file import replacing

CURRENT = "checkpoint.npz"
PREVIOUS = "checkpoint.previous.npz"
DAMAGED = "checkpoint.damaged.npz"


class State(NamedTuple):
    """The contents of a checkpoint.

    Attributes:
        names: List of strings. Paths of the variables.
        arrays: List of arrays. Values of the variables.
        history: List with one dict per finished epoch.
    """

    names: list
    arrays: list
    history: Any


def save(folder, model, history):
    """Saves all variables of a compiled model and its optimizer, and the history.

    Variables include weights, optimizer moments and step, normalization statistics and
    states of random generators. The previous checkpoint is kept, so that a complete
    checkpoint exists at any time.

    Args:
        folder: `pathlib.Path` of the run.
        model: A compiled `keras.Model`.
        history: List with one dict per finished epoch.
    """
    variables = state_variables(model, model.optimizer)
    arrays = {f"{i}": variable.numpy() for i, variable in enumerate(variables)}
    arrays["names"] = np.array([variable.path for variable in variables])
    arrays["history"] = np.array(json.dumps(history))
    current = folder / CURRENT
    with replacing(current) as temporary:
        np.savez(temporary, **arrays)
        if current.exists():
            os.replace(current, folder / PREVIOUS)


def restore(folder, model, optimizer):
    """Restores a model and its optimizer from a checkpoint.

    A corrupt newest checkpoint is renamed, and the previous one replaces it.

    Args:
        folder: `pathlib.Path` of the run.
        model: A built `keras.Model`.
        optimizer: The optimizer of the model.

    Returns:
        The history, a list with one dict per finished epoch. Empty without a
        checkpoint; then nothing is restored.

    Raises:
        InputError: If checkpoints exist, but no intact one belongs to this model. Then
            nothing is restored.
    """
    variables = state_variables(model, optimizer)
    current, previous = folder / CURRENT, folder / PREVIOUS
    files = [file for file in (current, previous) if file.exists()]
    if not files:
        return []
    try:
        state = _read(files[0], variables)
    except InputError as error:
        if len(files) < 2:
            raise
        try:
            state = _read(previous, variables)
        except InputError:
            raise error from None
        os.replace(current, folder / DAMAGED)
        os.replace(previous, current)
        print(
            f"{error}\nGoing on with the checkpoint before, after epoch "
            f"{len(state.history)}; the other is kept as {DAMAGED}.",
            file=sys.stderr,
            flush=True,
        )
    for variable, array in zip(variables, state.arrays, strict=True):
        variable.assign(array)
    return state.history


def read_history(folder):
    """Returns the history of the newest intact checkpoint, a list with one dict per
    finished epoch. Empty without a checkpoint."""
    for name in (CURRENT, PREVIOUS):
        try:
            return _read(folder / name).history
        except InputError:
            continue
    return []


def not_finite(variables):
    """Returns the names of variables with non-finite values."""
    return [
        variable.path
        for variable in variables
        if not np.all(np.isfinite(variable.numpy()))
    ]


def _read(file, variables=None):
    """Reads the `State` of a file, and checks it against `variables` if passed."""
    remedy = (
        f"Put back a copy of the checkpoint, or remove the folder {file.parent}: with "
        "--resume its training then starts again."
    )
    with reading(file, remedy):
        # NumPy does not close a corrupt file that it has opened.
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as content:
            names = content["names"].tolist()
            arrays = [content[f"{i}"] for i in range(len(names))]
            history = json.loads(content["history"].item())
        if [row["epoch"] for row in history] != list(range(1, len(history) + 1)):
            raise ValueError("The epochs of its history do not count from 1.")
        state = State(names, arrays, history)
        if variables is not None:
            _check(state, variables, file)
    return state


def _check(state, variables, file):
    if state.names != [variable.path for variable in variables]:
        raise InputError(
            f"{file} is a checkpoint of another model: the names of its variables "
            "differ. Was the code changed since the run began?"
        )
    for variable, array in zip(variables, state.arrays, strict=True):
        expected = (
            tuple(variable.shape),
            keras.backend.standardize_dtype(variable.dtype),
        )
        if (array.shape, array.dtype.name) != expected:
            raise ValueError(
                f"{variable.path} must have shape and dtype {expected}. "
                f"Received: {(array.shape, array.dtype.name)}."
            )
        if variable.trainable and not np.all(np.isfinite(array)):
            raise ValueError(f"The values of {variable.path} are not all finite.")


def state_variables(model, optimizer):
    """Returns all variables of a model, those that are not weights but belong to the
    state of its training, and the variables of its optimizer, which is built."""
    if not optimizer.built:
        optimizer.build(model.trainable_variables)
    controls = [
        variable
        for layer in model._flatten_layers()
        for variable in getattr(layer, "control_variables", ())
    ]
    return [*model.variables, *controls, *optimizer.variables]


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

    def share(self, model, optimizer, trainer):
        """Returns the model, the optimizer and the trainer of the first run, with the
        state of the arguments. In the first run, keeps and returns the arguments."""
        if self._trained is None:
            self._trained = model, optimizer, trainer
        else:
            _, earlier_optimizer, earlier_trainer = self._trained
            _assign(
                state_variables(earlier_trainer, earlier_optimizer),
                state_variables(trainer, optimizer),
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
def share_compiled(jobs):
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
