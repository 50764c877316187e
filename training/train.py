"""Trains one classifier through its phases, from the start or from a checkpoint."""

import sys

import keras

from training import checkpoint
from training.build import build_classifier, build_optimizer
from training.data import evaluation_batches, steps_per_epoch, training_batches
from training.epoch_recorder import EpochRecorder, save_model
from training.phases import enter_phase, equilibrium_layer, phase_spans, set_parts


def check(config, data):
    """Raises `InputError` if a part of the model or of a phase cannot be made."""
    model, _, spans = _made(config, data)
    for span in spans:
        set_parts(equilibrium_layer(model), span.phase, span.path)


def train(config, data, folder):
    """Returns a trained model and its history; everything is also saved in `folder`.

    A run that is already finished is only loaded. One that was interrupted goes on
    after the last epoch that was finished, and ends like one that was not.

    Args:
        config: a `ClassificationConfig`.
        data: the `ImageData`.
        folder: `pathlib.Path` of an existing folder.

    Returns:
        The `keras.Model` after the last epoch, and the history: a list of one dict for
        each epoch.
    """
    state, finished = folder / "checkpoint.npz", folder / "model.keras"
    if finished.exists():
        return keras.models.load_model(finished), checkpoint.read_history(state)
    model, optimizer, spans = _made(config, data)
    history = []
    if state.exists():
        enter_phase(model, spans[0], optimizer, config.jit_compile)
        history = checkpoint.restore(state, model)
    for span in spans:
        if len(history) < span.epochs.stop:
            enter_phase(model, span, optimizer, config.jit_compile)
            _fit(model, span, config, data, folder, history)
    save_model(model, finished)
    return model, history


def _made(config, data):
    """Returns model, optimizer and phases in the state in which a run begins."""
    # Resets the names of variables too, by which a checkpoint is checked.
    keras.utils.clear_session()
    keras.utils.set_random_seed(config.seed)
    model = build_classifier(config.model, data, config.precision)
    spans = phase_spans(config)
    num_epochs = spans[-1].epochs.stop
    num_steps = steps_per_epoch(data.training, config.data.batch_size)
    optimizer = build_optimizer(
        config.optimizer, num_epochs, num_steps, config.precision
    )
    return model, optimizer, spans


def _fit(model, span, config, data, folder, history):
    epochs = range(max(len(history), span.epochs.start), span.epochs.stop)
    settings = config.data
    callbacks = [EpochRecorder(folder, history, span.phase.name)]
    if config.tensorboard:
        # First, so that an epoch in the checkpoint is also in the event files.
        callbacks.insert(0, keras.callbacks.TensorBoard(folder / "tensorboard"))
    model.fit(
        training_batches(
            data.training,
            settings.batch_size,
            settings.augmentation,
            config.seed,
            epochs,
        ),
        validation_data=evaluation_batches(
            data.validation, settings.evaluation_batch_size
        ),
        steps_per_epoch=steps_per_epoch(data.training, settings.batch_size),
        initial_epoch=epochs.start,
        epochs=epochs.stop,
        callbacks=callbacks,
        shuffle=False,  # The stream is shuffled already.
        verbose=1 if sys.stdout.isatty() else 2,
    )
