"""TensorBoard event files of a run."""

import json
import os

import keras
import tensorflow as tf
from tensorboard.plugins.hparams import api

import deq_keras

from .. import registry
from ..config import reading as configs
from ..errors import reading
from ..evaluation.plots import residual_image
from ..files import records
from ..files.atomic_file import replacing, write_text
from ..files.records import read_json
from ..files.saved_model import writing

EVENTS = "tensorboard"
_SIZES = "sizes.json"
_REMEDY = "Remove it and continue the run with --resume, which makes it again."

# Parts of a config that do not affect training.
_NO_PARAMETERS = ("experiment", "evaluation", "imports", "tensorboard", "variants")

# Number of samples whose equilibria are logged.
_NUM_SAMPLES = 16

# Two checkpoints, and one epoch that is not checkpointed yet.
_NUM_REMEMBERED = 3


def callbacks(job, model, span, folder):
    """Returns the callbacks that write event files. They must precede the recorder.

    Args:
        job: The `Job`.
        model: The compiled model of the job.
        span: The `PhaseSpan`.
        folder: `pathlib.Path` of the run.
    """
    if not job.config.tensorboard:
        return []
    events = folder / EVENTS
    written = [_TensorBoard(events), _Sizes(events)]
    if job.equilibrium(model) is None:
        return written
    return [_summaries(job, model, span, events), *written]


def _summaries(job, model, span, folder):
    opened, samples = job.split(model), next(iter(job.samples(model)))[:_NUM_SAMPLES]
    return deq_keras.callbacks.EquilibriumSummaries(
        opened.layer,
        lambda: opened.encode(samples, training=False),
        folder,
        job.config.evaluation.max_iter,
        draw=residual_image,
        phase=span.phase.name,
    )


class _TensorBoard(keras.callbacks.TensorBoard):
    """Keras' callback with a flush per epoch; Keras flushes only every two minutes."""

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        for writer in self._writers.values():
            writer.flush()


class _Sizes(keras.callbacks.Callback):
    """Records the sizes of the event files at the end of each epoch, for `rewind`."""

    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def on_epoch_end(self, epoch, logs=None):
        sizes = {**_read_sizes(self.folder), str(epoch + 1): _sizes(self.folder)}
        kept = sorted(sizes, key=int)[-_NUM_REMEMBERED:]
        text = json.dumps({epochs: sizes[epochs] for epochs in kept})
        write_text(self.folder / _SIZES, text + "\n")


def rewind(folder, num_epochs):
    """Removes epochs from event files that a resumed run will repeat.

    Args:
        folder: `pathlib.Path` of the run.
        num_epochs: Non-negative integer. Number of epochs in the checkpoint.
    """
    events = folder / EVENTS
    sizes = _read_sizes(events).get(str(num_epochs)) if num_epochs else {}
    if sizes is None:  # The run started before sizes were recorded.
        return
    for name, size in _sizes(events).items():
        if name not in sizes:
            (events / name).unlink()
        elif size > sizes[name]:
            os.truncate(events / name, sizes[name])


def _sizes(folder):
    files = folder.rglob("events.out.tfevents.*")
    return {str(file.relative_to(folder)): file.stat().st_size for file in files}


def _read_sizes(folder):
    path = folder / _SIZES
    if not path.is_file():
        return {}
    remedy = f"Remove it: {folder} may then say twice what a resumed run does again."
    with reading(path, remedy):
        return {
            epochs: dict(sizes) for epochs, sizes in read_json(path, remedy).items()
        }


def write_scores(config, folder, name):
    """Writes the hyperparameters and scores of a finished variant, once.

    Args:
        config: `VariantsConfig` of the variant.
        folder: `pathlib.Path` of the variant's run, with evaluation and diagnosis.
        name: String. Name of the variant.
    """
    events = folder / EVENTS / "scores"
    if not config.tensorboard or events.exists():
        return
    scores = _scores(registry.find(config.experiment).score.name, folder)
    with writing(folder / EVENTS), replacing(events) as temporary:
        writer = tf.summary.create_file_writer(str(temporary))
        with writer.as_default(0):
            api.hparams(hyper_parameters(config), trial_id=name)
            for score, value in scores.items():
                tf.summary.scalar(f"scores/{score}", value)
        writer.close()


def hyper_parameters(config):
    """Returns a variant's hyperparameters as a dict from dotted paths to values."""
    mapping = configs.to_mapping(config)
    parts = {key: mapping[key] for key in mapping if key not in _NO_PARAMETERS}
    return dict(_leaves(parts))


def _leaves(tree, path=""):
    if isinstance(tree, dict | list):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from _leaves(value, f"{path}.{key}" if path else str(key))
    elif tree is not None:
        yield path, tree


def _scores(name, folder):
    """Returns the scores at the largest budget and the diagnosis of the equilibrium."""
    evaluation = records.read_evaluation(folder / records.EVALUATION, name, _REMEDY)
    largest = max(evaluation["budgets"], key=lambda row: row["budget"])
    scores = {name: largest[name], "parameters": evaluation["parameters"]}
    if (folder / records.DIAGNOSIS).exists():
        diagnosis = records.read_diagnosis(folder / records.DIAGNOSIS, _REMEDY)
        scores |= {part: diagnosis[part] for part in ("evaluations", "residual")}
        scores["spectral_radius"] = diagnosis["spectral_radius"]["mean"]
    return {score: value for score, value in scores.items() if value is not None}
