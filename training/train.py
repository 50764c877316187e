"""Trains a model through its phases, from the start or from a checkpoint."""

import sys

import keras

from training import checkpoint
from training.data import damage
from training.epoch_recorder import EpochRecorder, save_model
from training.phases import set_parts


class Job:
    """What a run must know of one variant of an experiment.

    Attributes:
        config: with `seed`, `tensorboard`, `jit_compile` and `phases`.
        monitor: str. The entry of the logs that tells the best epoch.
        is_better: function of two values of it.
    """

    def __init__(self, config, monitor, is_better):
        self.config = config
        self.monitor = monitor
        self.is_better = is_better

    def build(self):
        """Returns a model, an optimizer and the `PhaseSpan`s of a run."""
        raise NotImplementedError

    def equilibrium(self, model):
        """Returns the `DEQ` layer of a model, or `None` for explicit layers."""
        raise NotImplementedError

    def compile(self, model, optimizer):
        """Compiles a model; the optimizer goes on where it is."""
        raise NotImplementedError

    def fit_arguments(self, epochs):
        """Returns what `fit` is given for a `range` of epochs: data and steps."""
        raise NotImplementedError

    def callbacks(self, model):
        """Returns further callbacks, whose logs join the history."""
        del model
        return []

    def evaluate(self, model, budgets):
        """Measures a model at numbers of evaluations: one dict for each, of `budget`,
        the score of the experiment, `residual` and `evaluations`."""
        raise NotImplementedError

    def diagnose(self, model):
        """Returns what `training.diagnose` measures of a model's equilibrium."""
        raise NotImplementedError

    def export(self, model, path):
        """Exports a model as `training.export` does."""
        raise NotImplementedError


def check(job):
    """Raises `InputError` if a part of the model or of a phase cannot be made."""
    model, _, spans = _made(job)
    for span in spans:
        _set_parts(job, model, span)


def train(job, folder):
    """Returns a trained model and its history; everything is also saved in `folder`.

    A run that is already finished is only loaded. One that was interrupted goes on
    after the last epoch that was finished, and ends like one that was not.

    Args:
        job: the `Job`.
        folder: `pathlib.Path` of an existing folder.

    Returns:
        The `keras.Model` after the last epoch, and the history: a list of one dict for
        each epoch.
    """
    state, finished = folder / "checkpoint.npz", folder / "model.keras"
    if finished.exists():
        model = keras.models.load_model(finished, compile=False)
        return model, checkpoint.read_history(state)
    model, optimizer, spans = _made(job)
    history = []
    if state.exists():
        enter_phase(job, model, spans[0], optimizer)
        history = checkpoint.restore(state, model)
    for span in spans:
        if len(history) < span.epochs.stop:
            enter_phase(job, model, span, optimizer)
            _fit(job, model, span, folder, history)
    save_model(model, finished)
    return model, history


def _made(job):
    """Returns model, optimizer and phases in the state in which a run begins."""
    # Resets the names of variables too, by which a checkpoint is checked.
    keras.utils.clear_session()
    keras.utils.set_random_seed(job.config.seed)
    return job.build()


def enter_phase(job, model, span, optimizer):
    """Gives the model the parts of a phase and compiles it.

    The optimizer goes on where it is: its moments and its step stay.
    """
    _set_parts(job, model, span)
    job.compile(model, optimizer)


def _set_parts(job, model, span):
    layer = job.equilibrium(model)
    if layer is not None:
        set_parts(layer, span.phase, span.path)


def _fit(job, model, span, folder, history):
    epochs = range(max(len(history), span.epochs.start), span.epochs.stop)
    recorder = EpochRecorder(
        folder, history, span.phase.name, job.monitor, job.is_better
    )
    callbacks = job.callbacks(model)
    if job.config.tensorboard:
        callbacks.append(keras.callbacks.TensorBoard(folder / "tensorboard"))
    # Last, so that an epoch in the checkpoint is also in the event files.
    callbacks.append(recorder)
    with damage.reported():
        model.fit(
            **job.fit_arguments(epochs),
            initial_epoch=epochs.start,
            epochs=epochs.stop,
            callbacks=callbacks,
            shuffle=False,  # The data come in the order in which they are wanted.
            verbose=1 if sys.stdout.isatty() else 2,
        )
