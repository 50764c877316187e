"""Presets of this package, tasks that load as they were saved, and their configs."""

import pathlib

import keras

from deq_keras import gradients, initial_states, regularizers, solvers

# Presets with weights: a folder of KerasHub for each.
FOLDER = pathlib.Path(__file__).parents[2] / "presets"


def architecture(description, backbone, task=None):
    """Returns an entry of the `presets` of `PackagedPresets`.

    Args:
        description: String. A sentence for KerasHub's listing.
        backbone: Dict of the arguments of the backbone, or a function from a dtype to
            such a dict.
        task: Optional dict of the arguments of the task. Defaults to `None`, no
            arguments.
    """
    metadata = {"description": description}
    return {"metadata": metadata, "backbone": backbone, "task": task or {}}


def trained(name, description):
    """Returns an entry of `presets` whose weights are in the package.

    Args:
        name: String. Its folder in `deq_keras/presets`, with a model card.
        description: String. A sentence for KerasHub's listing.
    """
    return {"metadata": {"description": description}, "folder": FOLDER / name}


class PackagedPresets:
    """Mixin of backbones whose presets are in this package.

    List it before `keras_hub.models.Backbone`. The functions `trained` and
    `architecture` return entries of `presets`. An architecture without weights needs
    `load_weights=False`.
    """

    presets = {}
    # Name of the function that loads the authors' checkpoints, for the error message.
    converter = None

    @classmethod
    def from_preset(cls, preset, load_weights=True, **kwargs):
        """See `keras_hub.models.Backbone.from_preset`."""
        if "backbone" not in cls.presets.get(preset, {}):
            path = _path(cls, preset)
            return super().from_preset(path, load_weights, **kwargs)
        if load_weights:
            remedy = "load_weights=False"
            if cls.converter is not None:
                remedy += f", or load a checkpoint of the authors with {cls.converter}"
            raise ValueError(
                f"The preset '{preset}' is an architecture without weights. Pass "
                f"{remedy}. Received: load_weights=True."
            )
        arguments = cls.presets[preset]["backbone"]
        if callable(arguments):
            arguments = arguments(kwargs.pop("dtype", None))
        return cls(**{**arguments, **kwargs})


class RestorableTask:
    """Mixin of tasks that load as they were saved, and accept this package's presets.

    List it before KerasHub's classes. A loaded task is compiled as it was when it was
    saved. With Keras' `compile=False`, it is not compiled. See `PackagedPresets`.
    """

    def get_compile_config(self):
        config = super().get_compile_config()
        return config and {**config, "has_trained": self.optimizer.built}

    def compile_from_config(self, config):
        # Keras skips models that override `compile`.
        config = dict(config)
        has_trained = config.pop("has_trained")
        self.compile(**keras.saving.deserialize_keras_object(config))
        if has_trained:  # Only then the file contains an optimizer state.
            self.optimizer.build(self.trainable_variables)

    @classmethod
    def from_config(cls, config):
        return super().from_config({"compile": False, **config})

    @classmethod
    def from_preset(cls, preset, load_weights=True, **kwargs):
        """See `keras_hub.models.Task.from_preset`."""
        if "backbone" in cls.presets.get(preset, {}):
            policy = {"dtype": kwargs.pop("dtype")} if "dtype" in kwargs else {}
            backbone = cls.backbone_cls.from_preset(preset, load_weights, **policy)
            arguments = cls.presets[preset]["task"]
            return cls(**{"backbone": backbone, **arguments, **kwargs})
        task = super().from_preset(_path(cls, preset), load_weights, **kwargs)
        if not task.compiled:
            task.compile()
        return task


def _path(cls, preset):
    """Returns the folder of a trained preset; KerasHub resolves other names."""
    entry = cls.presets.get(preset)
    return preset if entry is None else str(entry["folder"])


def head_dtype_config(head, head_dtype):
    """Returns the config of the `head_dtype` of a model, or `None`.

    Args:
        head: The layer that has this dtype. If it is quantized, its config is returned.
        head_dtype: Dtype policy, or `None` for the default of the model.
    """
    if any(layer.quantization_mode for layer in head._flatten_layers()):
        return head.get_config()["dtype"]
    return head_dtype and keras.dtype_policies.serialize(head_dtype)


def equilibrium_config(deq):
    """Returns the arguments of a backbone that its `DEQ` layer stores."""
    return {
        "solver": solvers.serialize(deq.solver),
        "gradient": gradients.serialize(deq.gradient),
        "regularizer": regularizers.serialize(deq.regularizer),
        "max_iter_jitter": deq.max_iter_jitter,
        "initial_state": initial_states.serialize(deq.initial_state),
    }
