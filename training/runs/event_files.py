"""TensorBoard event files of a run: training, equilibria and hyperparameters."""

import keras
from tensorboard.plugins.hparams import api

import deq_keras

from ..config import reading as configs
from ..evaluation.budgets import equilibrium, split
from ..evaluation.plots import residual_image
from .feed import first_rows

EVENTS = "tensorboard"

# Parts of a config that do not affect training.
_NO_PARAMETERS = (
    "experiment",
    "evaluation",
    "imports",
    "published",
    "tasks",
    "tensorboard",
    "variants",
)

# Number of samples whose equilibria are logged.
_NUM_SAMPLES = 16


def callbacks(feed, model, span, folder):
    """Returns the callbacks that write event files.

    They must follow the recorder: every epoch in the event files is then in a
    checkpoint, and a resumed run does not repeat it.

    Args:
        feed: The `Feed` of the run.
        model: The model of the run, compiled.
        span: The `PhaseSpan`.
        folder: `pathlib.Path` of the run.
    """
    if not feed.config.tensorboard:
        return []
    events = folder / EVENTS
    events.mkdir(exist_ok=True)
    found = [
        keras.callbacks.TensorBoard(events, write_steps_per_second=True),
        api.KerasCallback(str(events), hyper_parameters(feed.config)),
    ]
    if equilibrium(model) is not None:
        parts, samples = split(model), next(iter(feed.batch_samples(model)))
        summaries = deq_keras.callbacks.EquilibriumSummaries(
            parts.layer,
            lambda: parts.encode(first_rows(samples, _NUM_SAMPLES)),
            events,
            feed.config.evaluation.max_iter,
            draw=residual_image,
            phase=span.phase.name,
        )
        found.append(summaries)
    return found


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
