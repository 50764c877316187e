"""TensorBoard event files: one run of TensorBoard per variant."""

import json
import os
import shutil
import tempfile
from pathlib import Path

import keras
import tensorflow as tf
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.custom_scalar import summary as custom_scalar
from tensorboard.plugins.hparams import api, api_pb2, metadata, plugin_data_pb2

import deq_keras

from .. import registry
from ..config import reading as configs
from ..config.reading import run_config, run_names
from ..errors import reading
from ..evaluation.plots import residual_image
from ..files import records
from ..files.atomic_file import replacing, write_text
from ..files.records import read_json
from ..files.saved_model import writing

EVENTS = "tensorboard"
_SIZES = "sizes.json"
_SCORES = "events.out.tfevents.scores"
_REMEDY = "Remove it and continue the run with --resume, which makes it again."

# Parts of a config that do not affect training.
_NO_PARAMETERS = (
    "experiment",
    "evaluation",
    "imports",
    "tasks",
    "tensorboard",
    "variants",
)

# Charts of several curves: title -> patterns of tags.
_CHARTS = {
    "loss": ["^epoch_loss$", "^epoch_val_loss$"],
    "residual over evaluations": [".*/residual_over_evaluations/"],
}

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
    events.mkdir(exist_ok=True)
    is_new = not _sizes(events)
    # TensorBoard shows each folder as a run, so all callbacks write to the same one.
    writer = tf.summary.create_file_writer(str(events))
    if is_new:
        _write_charts(writer)
    written = [_TensorBoard(events, writer), _Sizes(events)]
    if job.equilibrium(model) is None:
        return written
    return [_summaries(job, model, span, writer), *written]


def _summaries(job, model, span, writer):
    opened, samples = job.split(model), next(iter(job.samples(model)))[:_NUM_SAMPLES]
    return deq_keras.callbacks.EquilibriumSummaries(
        opened.layer,
        lambda: opened.encode(samples),
        writer,
        job.config.evaluation.max_iter,
        draw=residual_image,
        phase=span.phase.name,
    )


def _write_charts(writer):
    """Writes the charts of the tab Custom Scalars, which have several curves each."""
    charts = [
        layout_pb2.Chart(
            title=title, multiline=layout_pb2.MultilineChartContent(tag=tags)
        )
        for title, tags in _CHARTS.items()
    ]
    category = layout_pb2.Category(title="run", chart=charts)
    layout = custom_scalar.pb(layout_pb2.Layout(category=[category]))
    with writer.as_default(0):
        tf.summary.experimental.write_raw_pb(layout.SerializeToString())


class _TensorBoard(keras.callbacks.TensorBoard):
    """Keras' callback with one writer for training and validation.

    Keras opens a writer for each, and flushes only every two minutes.
    """

    def __init__(self, folder, writer):
        super().__init__(folder)
        self.writer = writer

    @property
    def _train_writer(self):
        return self.writer

    _val_writer = _train_writer

    def on_epoch_end(self, epoch, logs=None):
        # Keras removes the prefix `val_`, which distinguishes the values of one run.
        validation = {name for name in logs if name.startswith("val_")}
        training = {name: logs[name] for name in logs if name not in validation}
        super().on_epoch_end(epoch, training)
        with self.writer.as_default(epoch):
            for name in validation:
                tf.summary.scalar(f"epoch_{name}", logs[name])
        self.writer.flush()

    def on_train_end(self, logs=None):
        super().on_train_end(logs)
        self.writer.close()


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
    """Writes the hyperparameters and scores of a finished run, once.

    Args:
        config: `VariantsConfig` of all runs.
        folder: `pathlib.Path` of the run, with evaluation and diagnosis.
        name: String. Name of the run.
    """
    path = folder / EVENTS / _SCORES
    if not run_config(config, name).tensorboard or path.exists():
        return
    scores = _scores(registry.find(config.experiment).score.name, folder)
    rows = {run: hyper_parameters(run_config(config, run)) for run in run_names(config)}
    path.parent.mkdir(exist_ok=True)
    with (
        writing(path.parent),
        replacing(path) as temporary,
        tempfile.TemporaryDirectory() as scratch,
    ):
        writer = tf.summary.create_file_writer(scratch)
        with writer.as_default(0):
            tf.summary.experimental.write_raw_pb(_columns(list(rows.values()), scores))
            api.hparams(rows[name], trial_id=name)
            for score, value in scores.items():
                tf.summary.scalar(f"scores/{score}", value)
        writer.close()
        # A name that is known in advance marks finished scores.
        (file,) = Path(scratch).iterdir()
        shutil.copyfile(file, temporary)


def _columns(rows, scores):
    """Returns a serialized summary with the columns of the tab HParams.

    TensorBoard would derive columns from the files: it would add all scalars, and treat
    a parameter that only some runs have as equal in all. It shows parameters that
    differ first.

    Args:
        rows: List of dicts from hyperparameters to values, one per run.
        scores: Names of the scores.
    """
    names = sorted({name for row in rows for name in row})
    parameters = [_column(name, [row.get(name) for row in rows]) for name in names]
    metrics = [
        api_pb2.MetricInfo(
            name=api_pb2.MetricName(tag=f"scores/{score}"), display_name=score
        )
        for score in scores
    ]
    experiment = api_pb2.Experiment(
        hparam_infos=sorted(parameters, key=lambda column: not column.differs),
        metric_infos=metrics,
    )
    data = plugin_data_pb2.HParamsPluginData(experiment=experiment)
    summary = tf.compat.v1.Summary()
    summary.value.add(
        tag=metadata.EXPERIMENT_TAG,
        metadata=tf.compat.v1.SummaryMetadata.FromString(
            metadata.create_summary_metadata(data).SerializeToString()
        ),
        tensor=tf.make_tensor_proto([], tf.float32, shape=(0,)),
    )
    return summary.SerializeToString()


def _column(name, values):
    """Returns the `HParamInfo` of a hyperparameter; missing values are `None`."""
    present = {value for value in values if value is not None}
    column = api_pb2.HParamInfo(name=name, differs=len(set(values)) > 1)
    if all(isinstance(value, bool) for value in present):
        column.type = api_pb2.DATA_TYPE_BOOL
        column.domain_discrete.extend(sorted(present))
    elif all(isinstance(value, int | float) for value in present):
        column.type = api_pb2.DATA_TYPE_FLOAT64
        column.domain_interval.min_value = min(present)
        column.domain_interval.max_value = max(present)
    else:
        column.type = api_pb2.DATA_TYPE_STRING
        column.domain_discrete.extend(sorted(map(str, present)))
    return column


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
