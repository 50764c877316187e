"""The complete state of a training run in one file."""

import json

import numpy as np

from training.atomic_file import replacing
from training.errors import InputError


def save(path, model, history):
    """Saves all variables of a compiled model, its optimizer's, and the history.

    Weights, optimizer moments and step, normalisation statistics and the states of
    random generators are all variables. The file is replaced atomically.

    Args:
        path: the `.npz` file.
        model: a compiled `keras.Model`.
        history: list of one dict for each epoch that is done.
    """
    variables = _variables(model)
    arrays = {f"{i}": variable.numpy() for i, variable in enumerate(variables)}
    arrays["names"] = np.array([variable.path for variable in variables])
    arrays["history"] = np.array(json.dumps(history))
    with replacing(path) as temporary:
        np.savez(temporary, **arrays)


def restore(path, model):
    """Gives a model and its optimizer the state of a file; returns the history.

    Raises:
        InputError: if the file is not a checkpoint of this model.
    """
    variables = _variables(model)
    names = [variable.path for variable in variables]
    with np.load(path) as file:
        if names != file["names"].tolist():
            raise InputError(
                f"{path} is a checkpoint of another model: the names of its variables "
                "differ. Was the code changed since the run began?"
            )
        for i, variable in enumerate(variables):
            variable.assign(file[f"{i}"])
    return read_history(path)


def read_history(path):
    """Returns the history of a checkpoint: one dict for each epoch that is done."""
    with np.load(path) as file:
        return json.loads(file["history"].item())


def _variables(model):
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    return [*model.variables, *model.optimizer.variables]
