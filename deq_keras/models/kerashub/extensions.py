"""Presets of this package, tasks that load as they were saved, and their configs."""

import pathlib
from typing import Any

import keras
import numpy as np
from keras import tree
from keras_hub.models import Task

from deq_keras.core.checks import check_count
from deq_keras.core.internals import flatten_layers
from deq_keras.core.serialization import Config
from deq_keras.layers.normalization.normalized_kernel import NormalizedKernel

# Presets with weights: a folder of KerasHub for each.
FOLDER = pathlib.Path(__file__).parents[2] / "presets"


def architecture(
    description: str, backbone: Config, task: Config | None = None
) -> Config:
    """Returns an entry of the `presets` of `PackagedBackbone`.

    Args:
        description: String. A sentence for KerasHub's listing.
        backbone: Dict of the arguments of the backbone.
        task: Optional dict of the arguments of the task. Defaults to `None`, no
            arguments.
    """
    metadata = {"description": description}
    return {"metadata": metadata, "backbone": backbone, "task": task or {}}


def trained_preset(description: str) -> Config:
    """Returns an entry of `presets` whose weights are in the package.

    The folder of the preset in `deq_keras/presets` has its name, and a model card.

    Args:
        description: String. A sentence for KerasHub's listing.
    """
    return {"metadata": {"description": description}}


def preset_path(preset: str) -> str:
    """Returns the folder of a trained preset; KerasHub resolves all other names."""
    folder = FOLDER / str(preset)
    return str(folder) if (folder / "config.json").is_file() else preset


_Hub: Any = object  # KerasHub's classes, which the mixins precede.


class ArraySpecs(_Hub):
    """Mixin of models whose `compute_output_spec` also accepts NumPy arrays."""

    def compute_output_spec(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        # Keras' layers read the shapes of tensors only. KerasHub's tests pass arrays.
        def spec(x: Any) -> Any:
            if not isinstance(x, np.ndarray):
                return x
            dtype = keras.backend.standardize_dtype(x.dtype)
            return keras.KerasTensor(x.shape, dtype)

        inputs = tree.map_structure(spec, inputs)
        return super().compute_output_spec(inputs, *args, **kwargs)


class PackagedBackbone(ArraySpecs):
    """Mixin of the backbones of this package.

    List it before `keras_hub.models.Backbone`. The functions `trained_preset` and
    `architecture` return entries of `presets`. An architecture without weights needs
    `load_weights=False`.
    """

    presets: Config = {}
    # Name of the function that loads the authors' checkpoints, for the error message.
    converter: str | None = None
    # Names of the layers that `enable_lora` adapts by default: layers that compute
    # queries, keys and values. The injection of a `TransformerCell` is added to these.
    lora_layer_names: tuple[str, ...] = (
        "query",
        "value",
        "query_key_value",
        "injection_projection",
    )

    # Names every argument: Keras ignores unknown ones.
    def __init__(
        self,
        inputs: Any,
        outputs: Any,
        dtype: str | keras.DTypePolicy | None = None,
        name: str | None = None,
        trainable: bool = True,
    ) -> None:
        super().__init__(
            inputs=inputs, outputs=outputs, dtype=dtype, name=name, trainable=trainable
        )

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        self.check_inputs(inputs)
        return super().call(inputs, training=training, mask=mask)

    def check_inputs(self, inputs: Any) -> None:
        """Raises `ValueError` if the model does not accept these inputs."""

    @classmethod
    def from_preset(cls, preset: str, load_weights: bool = True, **kwargs: Any) -> Any:
        """Returns a backbone from a preset; see `keras_hub.models.Backbone`.

        Args:
            preset: String. A name in `presets`, the path of a folder that
                `save_to_preset` wrote, or a handle that KerasHub downloads.
            load_weights: Boolean. If false, the weights are initialized. Defaults to
                `True`.
            **kwargs: Arguments of the class, which replace the preset's.
        """
        if "backbone" not in cls.presets.get(preset, {}):
            return super().from_preset(preset_path(preset), load_weights, **kwargs)
        if load_weights:
            remedy = "load_weights=False"
            if cls.converter is not None:
                remedy += f", or load a checkpoint of the authors with {cls.converter}"
            raise ValueError(
                f"The preset '{preset}' is an architecture without weights. Pass "
                f"{remedy}. Received: load_weights=True."
            )
        arguments = cls.presets[preset]["backbone"]
        return cls(**{**arguments, **kwargs})

    def default_lora_layer_names(self) -> list[str]:
        """Returns the names in `lora_layer_names` of layers that support LoRA."""
        return [name for name in self.lora_layer_names if name in self._lora_names()]

    def enable_lora(
        self, rank: int, target_layer_names: list[str] | None = None
    ) -> None:
        """See `keras_hub.models.Backbone.enable_lora`.

        Layers with a normalized kernel do not support LoRA. The default names leave
        them out.

        Raises:
            ValueError: If no layer of these names supports LoRA, or one does not. The
                backbone is then unchanged.
        """
        rank = check_count("rank", rank)
        names = target_layer_names
        if names is None:
            names = self.default_lora_layer_names()
        layers = flatten_layers(self, include_self=False)
        layers = [layer for layer in layers if layer.name in names]
        supported = self._lora_names()
        is_normalized = any(isinstance(layer, NormalizedKernel) for layer in layers)
        if is_normalized or not supported.intersection(names):
            raise ValueError(
                f"`target_layer_names` must be names of layers of '{self.name}' that "
                f"support LoRA: {sorted(supported)}. Layers with a normalized kernel "
                "do not; a language model has none of them if it is created with "
                "`weight_normalization=False`. Received: target_layer_names="
                f"{target_layer_names}, where the default is "
                f"{self.default_lora_layer_names()}."
            )
        super().enable_lora(rank, names)
        for layer in layers:
            # KerasHub trains the biases too, but its files of LoRA weights lack them.
            if getattr(layer, "lora_enabled", False) and layer.bias is not None:
                layer.bias.trainable = False

    def _lora_names(self) -> set[str]:
        """Returns the set of names of the layers that support LoRA."""
        return {
            layer.name
            for layer in flatten_layers(self, include_self=False)
            if hasattr(layer, "enable_lora") and not isinstance(layer, NormalizedKernel)
        }


class RestorableTask(ArraySpecs):
    """Mixin of the tasks of this package, which load as they were saved.

    List it before KerasHub's class. A loaded task is compiled as it was when it was
    saved. With Keras' `compile=False`, it has KerasHub's default compilation.

    Args:
        backbone: `PackagedBackbone`.
        head: Layer from the outputs of the backbone to the outputs of the task.
        preprocessor: Optional layer for raw inputs. Defaults to `None`.
        compile: Boolean. Whether to compile with the defaults of the task. Defaults to
            `True`.
        name: String. Name of the model. Defaults to `None`.
        trainable: Boolean. Defaults to `True`.
    """

    def __init__(
        self,
        backbone: keras.Model,
        head: keras.layers.Layer,
        preprocessor: keras.layers.Layer | None = None,
        compile: bool = True,
        name: str | None = None,
        trainable: bool = True,
    ) -> None:
        self.backbone = backbone
        self.preprocessor = preprocessor
        # KerasHub's class of a task would add its own head.
        Task.__init__(
            self,
            inputs=backbone.input,
            outputs=head(backbone(backbone.input)),
            compile=compile,
            name=name,
            trainable=trainable,
        )

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        # Keras casts integers to floating-point later, which would hide the mistake.
        self.backbone.check_inputs(inputs)
        return super().call(inputs, training=training, mask=mask)

    def get_compile_config(self) -> Any:
        config = super().get_compile_config()
        if not config:
            return config
        # A file has the kernels of LoRA merged, and so no optimizer state that fits.
        has_lora = any(
            getattr(layer, "lora_enabled", False) for layer in self._flatten_layers()
        )
        return {**config, "has_trained": self.optimizer.built and not has_lora}

    def compile_from_config(self, config: Config) -> None:
        # Keras skips models that override `compile`.
        config = dict(config)
        has_trained = config.pop("has_trained")
        self.compile(**keras.saving.deserialize_keras_object(config))
        if has_trained:  # Only then the file contains an optimizer state.
            self.optimizer.build(self.trainable_variables)

    @classmethod
    def from_config(cls, config: Config) -> Any:
        task = super().from_config(config)
        optimizer = getattr(task, "optimizer", None)
        while optimizer is not None:
            _load_only_if_built(optimizer)
            optimizer = getattr(optimizer, "inner_optimizer", None)
        return task

    @classmethod
    def from_preset(cls, preset: str, load_weights: bool = True, **kwargs: Any) -> Any:
        """Returns a task from a preset; see `keras_hub.models.Task`.

        Args:
            preset: String. A name in `presets`, the path of a folder that
                `save_to_preset` wrote, or a handle that KerasHub downloads.
            load_weights: Boolean. If false, the weights are initialized. Defaults to
                `True`.
            **kwargs: Arguments of the class, which replace the preset's.
        """
        if "backbone" not in cls.presets.get(preset, {}):
            return super().from_preset(preset_path(preset), load_weights, **kwargs)
        # KerasHub passes these arguments to the backbone.
        names = [name for name in ("dtype", "image_shape") if name in kwargs]
        of_backbone = {name: kwargs.pop(name) for name in names}
        backbone = cls.backbone_cls.from_preset(preset, load_weights, **of_backbone)
        arguments = cls.presets[preset]["task"]
        return cls(**{"backbone": backbone, **arguments, **kwargs})


def _load_only_if_built(optimizer: Any) -> None:
    """Replaces `load_own_variables` so that an unbuilt optimizer ignores a file.

    If a task is loaded with `compile=False`, or was saved without compilation, Keras
    would warn that the file does not fit the optimizer of the default compilation.
    """
    load = optimizer.load_own_variables
    optimizer.load_own_variables = lambda store: optimizer.built and load(store)


class PackagedPreprocessor(_Hub):
    """Mixin of preprocessors and converters that load presets of this package by name.

    List it before KerasHub's classes.
    """

    @classmethod
    def from_preset(cls, preset: str, *args: Any, **kwargs: Any) -> Any:
        """See `from_preset` of KerasHub's class."""
        return super().from_preset(preset_path(preset), *args, **kwargs)


def head_dtype_config(head: Any, head_dtype: Any) -> Any:
    """Returns the config of the `head_dtype` of a model, or `None`.

    Args:
        head: The layer that has this dtype. If it is quantized, its config is returned.
        head_dtype: Dtype policy, or `None` for the default of the model.
    """
    if any(layer.quantization_mode for layer in flatten_layers(head)):
        return head.get_config()["dtype"]
    return head_dtype and keras.dtype_policies.serialize(head_dtype)
