"""Trains a model through its phases, from the start or from a checkpoint."""

import contextlib
import copy
import json
import sys

import keras
import tensorflow as tf
from keras import tree

from deq_keras.callbacks import EquilibriumWarnings

from .. import registry
from ..config import reading as configs
from ..data import corruption
from ..errors import InputError, config_errors
from ..evaluation import tuning
from ..evaluation.budgets import equilibrium
from ..files import records, saved_model
from ..files.saved_model import writing
from . import checkpoint, compilation, components, event_files
from .callbacks import (
    AveragedWeights,
    DataWait,
    EpochLine,
    EpochRecorder,
    ShortBar,
    ShortLastEpoch,
)
from .distribution import OneDevice
from .optimizers import build_optimizer, schedule_callbacks
from .phases import (
    num_epochs,
    phase_spans,
    regularizer_schedule,
    set_strategies,
)

REMEDY = (
    "Remove it and continue the run with --resume, which makes it again: from the "
    "checkpoint, and without one by training."
)
# Keys of a config that do not change the graph of a training step.
_NOT_IN_STEPS = (
    "distribution",
    "evaluation",
    "optimizer",
    "seed",
    "seeds",
    "tasks",
    "tensorboard",
    "variants",
)


def check(job, traced=None):
    """Raises `InputError` if a component of the model or of a phase cannot be built, or
    if the training step of a phase cannot be traced.

    A solver, a gradient and a regularizer may be valid alone but not together; only
    their training step shows it. Tracing builds the step and runs nothing.

    Args:
        job: A `Job`.
        traced: Set of the steps that earlier calls have traced and that are skipped,
            which this call extends. Defaults to `None`: all phases are traced. Models
            without an equilibrium are not traced.
    """
    traced = set() if traced is None else traced
    job.distribution.check(job.feed)
    components.check(job.config)
    with config_errors("config"):
        _forget_earlier_models(job)
        model, _, spans = build(job)
        trainer = job.wrap_model(model)
        job.feed.fit_arguments(spans[0].steps)
        new = {}
        for span in spans:
            _set_strategies(model, span)
            _schedules(job, model, span)
            _check_compiles(job, model)
            # The spans of a phase differ only in the weight of its regularizer.
            step = _step_of_config(job.config, span.phase)
            if step not in traced and span.path not in new:
                new[span.path] = span
                traced.add(step)
        if equilibrium(model) is not None:
            _trace(job, model, trainer, new.values())


def build(job):
    """Returns the model, the optimizer and the `PhaseSpan`s of a run."""
    config, model = job.config, job.build_model()
    steps_per_epoch = job.feed.steps_per_epoch
    spans = phase_spans(config, steps_per_epoch)
    num_steps = spans[-1].steps.stop
    optimizer = build_optimizer(
        config.optimizer, num_steps, steps_per_epoch, config.precision
    )
    return model, optimizer, spans


def compile_model(job, trainer, optimizer, jit_compile="auto"):
    """Compiles a model, or the model around it; the optimizer keeps its state."""
    trainer.compile(optimizer, jit_compile=jit_compile, **job.objective())


def _step_of_config(config, phase):
    """Returns the values of a config that determine the training step of a phase."""
    values = {**configs.to_mapping(config), "phases": phase.model_dump()}
    for name in ("epochs", "steps", "name", "regularizer_ramp"):
        del values["phases"][name]
    return json.dumps(
        {name: value for name, value in values.items() if name not in _NOT_IN_STEPS}
    )


def _trace(job, model, trainer, spans):
    """Traces a training step of each span."""
    if not spans:
        return
    # The strategies of tf.distribute repeat the step of one device.
    feed = copy.copy(job.feed)
    feed.distribution = OneDevice()
    feed.distribution.begin(model, None)
    batch = _batch_spec(feed.fit_arguments(range(1)))
    # The steps of all phases share the variables of one optimizer. The optimizer of the
    # config would double the time.
    compile_model(job, trainer, keras.optimizers.SGD(), job.config.jit_compile)
    trainer.optimizer.build(trainer.trainable_variables)
    for span in spans:
        _set_strategies(model, span)
        with config_errors(span.path):
            step = tf.function(trainer.train_step, autograph=False)
            step.get_concrete_function(batch)


def _batch_spec(arguments):
    """Returns the `tf.TensorSpec`s of a batch of the arguments of `fit`."""
    if hasattr(arguments["x"], "element_spec"):
        return arguments["x"].element_spec
    arrays = [
        arguments[name] for name in ("x", "y", "sample_weight") if name in arguments
    ]
    return tuple(
        tree.map_structure(
            lambda array: tf.TensorSpec((None, *array.shape[1:]), array.dtype), arrays
        )
    )


def _check_compiles(job, model):
    """Raises `InputError` for layers on which XLA would fail with an internal error."""
    layers = [layer for layer in model._flatten_layers() if not layer.supports_jit]
    if job.config.jit_compile is True and layers:
        raise InputError(
            "`jit_compile` must be false or auto: XLA cannot compile "
            f"{', '.join(f'`{layer.name}`' for layer in layers)}, such as a memory of "
            "segments or a compact solver. Received: jit_compile=True."
        )


def train(job, folder):
    """Trains a model and saves it in `folder`. Returns the model and its history.

    A finished run is only loaded, unless its config has more epochs than its history.
    An interrupted run continues after its last complete epoch, in the phase of this
    epoch, and yields the same result as an uninterrupted run.

    Args:
        job: A `Job`.
        folder: `pathlib.Path` of an existing folder.

    Returns:
        Tuple of the saved `keras.Model` after the last epoch and the history, a list
        with one dict per epoch.

    Raises:
        InputError: If the files of an earlier process cannot be used.
    """
    finished = folder / records.MODEL
    if finished.exists():
        history = checkpoint.read_history(folder)
        if 0 < len(history) < _num_epochs(job):
            # The run continues: its measurements go, and at last its model, without
            # which an interrupted run counts as unfinished.
            results = (records.EVALUATION, records.DIAGNOSIS, tuning.RECORD)
            for name in (*results, records.MODEL):
                (folder / name).unlink(missing_ok=True)
    if finished.exists():
        _rewrite_table(folder, history)
    else:
        history = _train(job, folder)
    return job.compiled.load(finished, REMEDY), history


def _train(job, folder):
    """Trains from the start or from the checkpoint, and saves the model."""
    _forget_earlier_models(job)
    with job.distribution.scope():
        model, optimizer, spans = build(job)
        trainer = job.wrap_model(model)
        job.distribution.begin(model, optimizer)
        history = checkpoint.restore(folder, trainer, optimizer)
        job.distribution.continue_from(model)
        model, optimizer, trainer = job.compiled.share(model, optimizer, trainer)
    last_epoch = spans[-1].epochs.stop
    if len(history) > last_epoch:
        raise InputError(
            f"The checkpoint in {folder} is after epoch {len(history)}, but the phases "
            f"of the config have {last_epoch} epochs together."
        )
    _rewrite_table(folder, history)
    # Enters the last phase even after the last epoch, to save the model in this phase.
    for span in [span for span in spans if span.epochs.stop > len(history)] or spans[
        -1:
    ]:
        if job.compiled.span != span:
            enter_phase(job, model, span, optimizer, trainer)
            job.compiled.span = span
        _fit(job, model, trainer, span, folder, history)
    saved_model.save(model, folder / records.MODEL)
    return history


def _num_epochs(job):
    return num_epochs(job.config.phases, lambda: job.feed.steps_per_epoch)


def _rewrite_table(folder, history):
    """Rewrites the table of a history, which may be corrupt or have more epochs."""
    if history:
        records.write_csv(folder / records.HISTORY, history)


def _forget_earlier_models(job):
    """Resets the global state of Keras, as in a new process."""
    # A checkpoint is compared by the names of variables, which this also resets.
    keras.utils.clear_session()
    keras.utils.set_random_seed(job.config.seed)


def enter_phase(job, model, span, optimizer, trainer=None):
    """Sets the strategies of a phase, and compiles the trainer or else the model.

    The optimizer keeps its moments and its step.
    """
    with job.distribution.scope():
        _set_strategies(model, span)
        trainer = model if trainer is None else trainer
        compile_model(job, trainer, optimizer, compilation.choose(job, model, span))
        if not optimizer.built:  # Or `fit` traces the step twice, to build it.
            optimizer.build(trainer.trainable_variables)
        schedule = job.config.optimizer.schedule
        if span.phase.regularizer_ramp or schedule == "inverse_square_root":
            # Their callbacks act before every step.
            trainer.steps_per_execution = 1


def _set_strategies(model, span):
    layer = equilibrium(model)
    if layer is not None:
        set_strategies(layer, span.phase, span.path)
        with config_errors(f"{span.path}.max_iter_jitter"):
            layer.max_iter_jitter = span.phase.max_iter_jitter
        # A ramp of the previous phase does not continue.
        layer.penalty_factor, layer.penalty_probability = 1.0, None


def _schedules(job, model, span):
    layer = equilibrium(model)
    if layer is None or span.phase.regularizer_ramp is None:
        return []
    accumulation = job.config.optimizer.accumulation_steps
    return [regularizer_schedule(layer, span, accumulation)]


def _fit(job, model, trainer, span, folder, history):
    epochs = range(max(len(history), span.epochs.start), span.epochs.stop)
    if not epochs:
        return
    finished = (epochs.start - span.epochs.start) * job.feed.steps_per_epoch
    with corruption.locating(), writing(folder / event_files.EVENTS):
        trainer.fit(
            **job.feed.fit_arguments(span.steps[finished:]),
            initial_epoch=epochs.start,
            epochs=epochs.stop,
            callbacks=_callbacks(job, model, span, folder, history),
            shuffle=False,  # The datasets determine the order.
            verbose=1 if sys.stdout.isatty() else 0,
        )


def _callbacks(job, model, span, folder, history):
    layer = equilibrium(model)
    score = registry.find(job.config.experiment).score
    callbacks = job.make_callbacks(model)
    if layer is not None:
        callbacks.append(EquilibriumWarnings(layer))
    callbacks += _schedules(job, model, span)
    steps_per_epoch = job.feed.steps_per_epoch
    callbacks += schedule_callbacks(
        job.config.optimizer, steps_per_epoch, history, job.monitor, job.mode
    )
    rest = len(span.steps) % steps_per_epoch
    if rest:
        callbacks.append(ShortLastEpoch(rest))
    if job.distribution.stopwatch.is_used:
        callbacks.append(DataWait(job.distribution.stopwatch))
    in_place = contextlib.nullcontext
    if job.config.optimizer.ema_momentum is not None:
        averages = AveragedWeights()
        callbacks.append(averages)
        in_place = averages.in_place
    if sys.stdout.isatty():
        callbacks.append(ShortBar(score))
    callbacks.append(EpochLine(score, layer and layer.name, _num_epochs(job)))
    callbacks.append(
        EpochRecorder(
            folder,
            history,
            span.phase.name,
            job.monitor,
            job.mode,
            model,
            in_place,
            not job.counts_failures,
        )
    )
    return callbacks + event_files.callbacks(job.feed, model, span, folder)
