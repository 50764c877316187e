"""Trains a model through its phases, from the start or from a checkpoint."""

import contextlib
import sys

import keras

from ..data import corruption
from ..errors import InputError, config_errors
from ..files import records, saved_model
from ..files.tensorflow_files import writing
from . import checkpoint, event_files
from .callbacks import (
    AveragedWeights,
    DataWait,
    EpochBackup,
    EpochLine,
    EpochRecorder,
    ShortBar,
)
from .phases import set_strategies

MODEL = "model.keras"
REMEDY = (
    "Remove it and continue the run with --resume, which makes it again: from the "
    "checkpoint, and without one by training."
)


def check(job):
    """Raises `InputError` if a part of the model or of a phase cannot be made."""
    job.distribution.check(job)
    with config_errors("config"):
        _forget_earlier_models(job)
        model, _, spans = job.build()
        job.trainer(model)
        for span in spans:
            _set_strategies(job, model, span)
            _check_compiles(job, model)
        job.fit_arguments(spans[0].epochs)


def _check_compiles(job, model):
    """Raises before training where XLA would fail with an internal message."""
    layers = [layer for layer in model._flatten_layers() if not layer.supports_jit]
    if job.config.jit_compile is True and layers:
        raise InputError(
            "`jit_compile` must be false or auto: XLA cannot compile "
            f"{', '.join(f'`{layer.name}`' for layer in layers)}, such as a memory of "
            "segments or a compact solver. Received: jit_compile=True."
        )


def train(job, folder):
    """Returns a trained model and its history; everything is also saved in `folder`.

    Of several workers the chief does so. The others save checkpoints in folders of
    their own, to be continued together with it, and return no model.

    A run that is already finished is only loaded. One that was interrupted goes on
    after the last epoch that was finished, in the phase in which that epoch was, and
    ends like one that was not.

    Args:
        job: the `Job`.
        folder: `pathlib.Path` of an existing folder.

    Returns:
        The `keras.Model` after the last epoch, as it was saved, and the history: a list
        of one dict for each epoch. `None` and `None` where this is not the chief.

    Raises:
        InputError: if what an earlier process has saved cannot be used.
    """
    finished, is_chief = folder / MODEL, job.distribution.is_chief
    # All workers use the chief's answer.
    if not job.distribution.least(finished.exists() or not is_chief):
        history = _trained(job, folder)
    elif is_chief:
        history = checkpoint.read_history(folder)
        _rewrite_table(folder, history)
    return (saved_model.load(finished, REMEDY), history) if is_chief else (None, None)


def _trained(job, folder):
    """Trains from the start or from the checkpoint; saves the model."""
    _forget_earlier_models(job)
    with job.distribution.scope():
        model, optimizer, spans = job.build()
        trainer = job.trainer(model)
        job.distribution.begin(model, optimizer)
        history = _restored(job, folder, trainer, optimizer)
        job.distribution.continue_from(model)
    num_epochs = spans[-1].epochs.stop
    if len(history) > num_epochs:
        raise InputError(
            f"The checkpoint in {folder} is after epoch {len(history)}, but the phases "
            f"of the config have {num_epochs} epochs together."
        )
    if job.distribution.is_chief:
        _rewrite_table(folder, history)
        event_files.rewind(folder, len(history))
    # After the last epoch too: what is saved is the model in its last phase.
    for span in [span for span in spans if span.epochs.stop > len(history)] or spans[
        -1:
    ]:
        enter_phase(job, model, span, optimizer, trainer)
        _fit(job, model, trainer, span, folder, history)
    if job.distribution.is_chief:
        saved_model.save(model, folder / MODEL)
    return history


def _restored(job, folder, trainer, optimizer):
    """Restores the newest checkpoint that all workers have; returns its history."""
    num_epochs = len(checkpoint.read_history(folder))
    common = job.distribution.least(num_epochs)
    if common == num_epochs:
        return checkpoint.restore(folder, trainer, optimizer)
    return checkpoint.restore_epoch(folder, trainer, optimizer, common)


def _rewrite_table(folder, history):
    """Writes the table of a history again: it may be damaged, or ahead of it."""
    if history:
        records.write_history(folder / records.HISTORY, history)


def _forget_earlier_models(job):
    """Resets the global state of Keras, as in a new process."""
    # Resets the names of variables too, by which a checkpoint is checked.
    keras.utils.clear_session()
    keras.utils.set_random_seed(job.config.seed)


def enter_phase(job, model, span, optimizer, trainer=None):
    """Gives the model the strategies of a phase and compiles what `fit` is called on,
    the model unless it has a `trainer`.

    The optimizer keeps its moments and its step.
    """
    with job.distribution.scope():
        _set_strategies(job, model, span)
        job.compile(model if trainer is None else trainer, optimizer)


def _set_strategies(job, model, span):
    layer = job.equilibrium(model)
    if layer is not None:
        set_strategies(layer, span.phase, span.path)
        with config_errors(f"{span.path}.max_iter_jitter"):
            layer.max_iter_jitter = span.phase.max_iter_jitter


def _fit(job, model, trainer, span, folder, history):
    epochs = range(max(len(history), span.epochs.start), span.epochs.stop)
    if not epochs:
        return
    with corruption.reported(), writing(folder / event_files.EVENTS):
        trainer.fit(
            **job.fit_arguments(epochs),
            initial_epoch=epochs.start,
            epochs=epochs.stop,
            callbacks=_callbacks(job, model, span, folder, history),
            shuffle=False,  # The data come in the order in which they are wanted.
            verbose=1 if job.distribution.is_chief and sys.stdout.isatty() else 0,
        )


def _callbacks(job, model, span, folder, history):
    layer = job.equilibrium(model)
    score = job.monitor.removeprefix("val_")
    num_epochs = sum(phase.epochs for phase in job.config.phases)
    # Those of the job on every worker, which otherwise would not stay in step.
    callbacks = job.callbacks(model)
    if job.distribution.stopwatch.is_used:
        callbacks.append(DataWait(job.distribution.stopwatch))
    in_place = contextlib.nullcontext
    if job.config.optimizer.ema_momentum is not None:
        averages = AveragedWeights()
        callbacks.append(averages)
        in_place = averages.in_place
    if not job.distribution.is_chief:
        return [*callbacks, EpochBackup(folder, history, span.phase.name)]
    if sys.stdout.isatty():
        callbacks.append(ShortBar(score))
    callbacks.append(EpochLine(score, layer and layer.name, num_epochs))
    # An epoch in the checkpoint is also in the event files.
    callbacks += event_files.callbacks(job, model, span, folder)
    callbacks.append(
        EpochRecorder(
            folder,
            history,
            span.phase.name,
            job.monitor,
            job.is_better,
            model,
            in_place,
        )
    )
    return callbacks
