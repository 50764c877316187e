"""The models of a study: trained once, saved, and read when the study continues."""

import math
import time

import keras

import deq_keras

from ..errors import config_errors, reading
from ..files import records, saved_model
from ..runs.job import build_optimizer
from .equilibrium_config import LAYER_DEFAULT


def equilibrium_layer(cell, config, seed):
    """Returns the `DEQ` layer of a cell, named `deq`.

    Args:
        cell: An `EquilibriumCell`.
        config: The `EquilibriumConfig`.
        seed: Integer. Seed of the random numbers of training.

    Raises:
        InputError: If a component rejects an argument.
    """
    given = {
        name: value for name, value in vars(config).items() if value != LAYER_DEFAULT
    }
    with config_errors("equilibrium"):
        return deq_keras.layers.DEQ(cell, seed=seed, name="deq", **given)


def finished(directory, name, train, line):
    """Returns the result of a run, from its folder if it is already there.

    The folder holds `history.csv`, `model.keras` and, last, `result.json`.

    Args:
        directory: the `WorkDirectory` of the study.
        name: str. The name of its folder.
        train: function that returns the trained model, its history and a dict of plain
            numbers, the result.
        line: function of a result that returns the line that tells it, for a look
            whether a result that is read is one.

    Raises:
        InputError: if the result is damaged.
    """
    folder = directory.run(name)
    file = folder / "result.json"
    if file.is_file():
        remedy = _remedy(folder)
        result = records.read_json(file, remedy)
        with reading(file, remedy):
            line(result)  # Cannot be written of something else.
        return result
    # Dozens of models would otherwise pile up in Keras' global state.
    keras.utils.clear_session()
    model, history, result = train()
    records.write_history(folder / "history.csv", history)
    saved_model.save(model, folder / "model.keras")
    # Written last: this file marks a finished run.
    records.write_json(file, result)
    return result


def trained_model(directory, name):
    """Returns the saved model of a finished run."""
    folder = directory.folder(name)
    return saved_model.load(folder / "model.keras", _remedy(folder))


def fit(model, inputs, targets, batch_size, epochs, optimizer, loss):
    """Trains a model on arrays.

    Args:
        model: not yet compiled.
        inputs: array `(num_examples, ...)`.
        targets: array `(num_examples, ...)`.
        batch_size: int.
        epochs: int.
        optimizer: the `OptimizerConfig`.
        loss: of Keras.

    Returns:
        A list of one dict for each epoch, and the seconds it took.
    """
    num_steps = math.ceil(len(inputs) / batch_size)
    optimizer = build_optimizer(optimizer, epochs, num_steps, "float32")
    # One call of the runtime an epoch: a step takes less time than its dispatch.
    model.compile(optimizer, loss, steps_per_execution=num_steps)
    start = time.perf_counter()
    logs = model.fit(
        inputs, targets, batch_size=batch_size, epochs=epochs, verbose=0
    ).history
    seconds = time.perf_counter() - start
    return [
        {"epoch": epoch + 1, **{name: float(logs[name][epoch]) for name in logs}}
        for epoch in range(epochs)
    ], seconds


def _remedy(folder):
    return f"Remove {folder} and add --resume."
