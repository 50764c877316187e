"""Hyper-parameters and final scores of a run, as TensorBoard compares them."""

import tensorflow as tf
from tensorboard.plugins.hparams import api

from .. import registry
from ..config import reading as configs
from ..files import records
from ..files.atomic_file import replacing
from ..files.tensorflow_files import writing
from .event_files import EVENTS

_REMEDY = "Remove it and continue the run with --resume, which makes it again."

# Parts of a config that make no difference to what is trained.
_NO_PARAMETERS = ("experiment", "evaluation", "tensorboard", "variants")


def write_scores(config, folder, name):
    """Writes the config of a finished variant beside what was measured of it, once.

    Args:
        config: its `VariantsConfig`.
        folder: `pathlib.Path` of the variant's run, with evaluation and diagnosis.
        name: str. That of the variant.
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
    """Returns dotted path -> number, text or boolean of what a variant trains with."""
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
    """Returns what was measured at the largest budget, and of the equilibrium."""
    evaluation = records.read_evaluation(folder / records.EVALUATION, name, _REMEDY)
    largest = max(evaluation["budgets"], key=lambda row: row["budget"])
    scores = {name: largest[name], "parameters": evaluation["parameters"]}
    if (folder / records.DIAGNOSIS).exists():
        diagnosis = records.read_diagnosis(folder / records.DIAGNOSIS, _REMEDY)
        scores |= {part: diagnosis[part] for part in ("evaluations", "residual")}
        scores["spectral_radius"] = diagnosis["spectral_radius"]["mean"]
    return {score: value for score, value in scores.items() if value is not None}
