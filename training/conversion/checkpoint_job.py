"""Loads a checkpoint into the model of a config, to measure it."""

from pathlib import Path

import keras

from .. import registry
from ..errors import InputError
from ..files import saved_model
from ..files.input_file import check_file
from ..runs import components
from . import checkpoint_file


def load(path, config):
    """Returns the `Job` of a config, and its model with the weights of a checkpoint.

    Args:
        path: Path of a `.keras` file, whose weights the model of the config must have,
            or of a state dict of the authors' code; see `import_checkpoint`. The sizes
            of the model are then the state dict's.
        config: The config of one run. Its data define the task, and the model has its
            solver and all its settings that weights do not determine.

    Raises:
        InputError: If the file cannot be read, or belongs to another model.
    """
    path = Path(path)
    check_file(path, "checkpoint")
    registry.import_modules(config.imports, "`imports`:")
    components.check(config)
    cls = registry.implementation(config.experiment)
    # A run keeps the vocabulary of its text beside its model.
    job = cls(config, lambda: cls.load_data(config.data, path.parent))
    if path.suffix == ".keras":
        model = job.build_model()
        source = saved_model.load(path, "Give another checkpoint.")
        _copy(_network(source), _network(model), path)
        if not _copy_normalization(source, model):
            _check_normalization(config)
        return job, model
    _check_normalization(config)
    state_dict = checkpoint_file.read(path)
    try:
        return job, job.load_reference(state_dict)
    except (TypeError, ValueError) as error:
        raise InputError(f"{path}: {error}") from error


def _network(model):
    # The model of a language run is a task with its loss.
    return getattr(model, "causal_lm", model)


def _copy_normalization(source, target):
    """Returns whether a model normalizes images, and lets another do the same.

    Means and deviations do not count as weights.
    """
    if getattr(source, "preprocessor", None) is not None:
        target.preprocessor = source.preprocessor
        return True
    found, own = (
        [
            layer
            for layer in model._flatten_layers()
            if isinstance(layer, keras.layers.Normalization)
        ]
        for model in (source, target)
    )
    for layer, other in zip(found, own):
        other.mean, other.variance = layer.mean, layer.variance
    return bool(found)


def _check_normalization(config):
    if getattr(config.data, "is_measured", False):
        raise InputError(
            "A checkpoint needs images that are normalized as in its training. Set "
            "`data.mean` and `data.standard_deviation`. Received: mean=null."
        )


def _copy(source, target, path):
    """Assigns the weights of a model to another model of the same architecture."""
    found, expected = (
        [(variable.name, tuple(variable.shape)) for variable in model.weights]
        for model in (source, target)
    )
    differences = [pair for pair in zip(found, expected) if pair[0] != pair[1]]
    if type(source) is not type(target) or len(found) != len(expected) or differences:
        first = f", first {differences[0]}" if differences else ""
        raise InputError(
            f"{path} must have the weights of the config's model. Received: a "
            f"{type(source).__name__} of {len(found)} weights for a "
            f"{type(target).__name__} of {len(expected)}; {len(differences)} "
            f"differ{first}."
        )
    target.set_weights(source.get_weights())
