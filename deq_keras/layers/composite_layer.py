"""Base class of layers with sublayers, which saves their quantization."""

import json
import os
import re
from collections.abc import Iterator
from typing import Any

import keras
from keras import dtype_policies

from deq_keras.core.internals import flatten_layers
from deq_keras.core.serialization import Config


class CompositeLayer(keras.layers.Layer):
    """Layer that saves which of its sublayers are quantized.

    `keras.Model.quantize` changes the dtype policies of sublayers. Keras does not write
    them to the config of the layer that creates the sublayers. The config of a
    composite layer therefore contains a `DTypePolicyMap` of their paths, which a loaded
    layer passes to its sublayers as `dtype=self.dtype_policy`.
    """

    def get_config(self) -> Config:
        return {**super().get_config(), **self._quantized_dtype()}

    def save_own_variables(self, store: Any) -> None:
        self._assign_quantized_policies()
        super().save_own_variables(store)

    def load_own_variables(self, store: Any) -> None:
        self._assign_quantized_policies()
        super().load_own_variables(store)

    def fixed_policy(self, dtype: str) -> str | dtype_policies.DTypePolicyMap:
        """Returns the `dtype` of a sublayer that ignores the dtype of this layer.

        Args:
            dtype: String. Compute dtype of the sublayer.
        """
        policy = self.dtype_policy
        if not isinstance(policy, dtype_policies.DTypePolicyMap):
            return dtype
        return dtype_policies.DTypePolicyMap(dtype, dict(policy))

    def _assign_quantized_policies(self) -> None:
        # If the policy of a quantized layer is a map, Keras' `save_own_variables` reads
        # the default of the map, and writes the kernel without its scale.
        for sublayer in self._built_sublayers():
            policy = _own_policy(sublayer)
            if policy.quantization_mode is not None:
                sublayer._dtype_policy = policy

    def _quantized_dtype(self) -> Config:
        """Returns a dict with `"dtype"` if any sublayer is quantized, else `{}`."""
        paths: dict[str, set[str]] = {}
        policies: dict[str, keras.DTypePolicy] = {}
        for sublayer in self._built_sublayers():
            policy = _own_policy(sublayer)
            if policy.quantization_mode is not None:
                _check_quantizers(sublayer)
                policies[policy.name] = policy
                paths.setdefault(policy.name, set()).add(self._path_pattern(sublayer))
        if not policies:
            return {}
        policy_map = _without_quantized(self.dtype_policy)
        for name, policy in policies.items():
            policy_map[f"(?:.*/)?(?:{'|'.join(sorted(paths[name]))})"] = policy
        self._check_policies(policy_map)
        return {"dtype": dtype_policies.serialize(policy_map)}

    def _built_sublayers(self) -> Iterator[keras.layers.Layer]:
        sublayers = flatten_layers(self, include_self=False)
        return (sublayer for sublayer in sublayers if sublayer.path)

    def _path_pattern(self, sublayer: keras.layers.Layer) -> str:
        """Returns a regular expression for the path of a sublayer within this layer.

        The prefix of the path depends on where the layer is built, and the numbers of
        automatic names on the number of layers created before.
        """
        automatic = {
            layer.name
            for layer in flatten_layers(self)
            if re.fullmatch(rf"{_snake_case(type(layer).__name__)}(_\d+)?", layer.name)
        }
        parts, before = sublayer.path.split("/"), (self.path or "").split("/")
        num_common = len(os.path.commonprefix([parts[:-1], before]))
        return "/".join(
            re.sub(r"_\d+$", "", part) + r"(?:_\d+)?"
            if part in automatic
            else re.escape(part)
            for part in parts[num_common:]
        )

    def _check_policies(self, policy_map: dtype_policies.DTypePolicyMap) -> None:
        for sublayer in self._built_sublayers():
            mode = _own_policy(sublayer).quantization_mode
            try:
                is_same = policy_map[sublayer.path].quantization_mode == mode
            except ValueError:  # Keras raises it if two patterns match.
                is_same = False
            if not is_same:
                raise ValueError(
                    f"The config of layer '{self.name}' cannot say which of its "
                    "sublayers are quantized: some with the same kind of name are and "
                    "some are not. Give each sublayer a `name` of its own, or quantize "
                    f"all of them. Received: sublayer '{sublayer.path}' with "
                    f"quantization_mode={mode!r}."
                )


def _own_policy(layer: keras.layers.Layer) -> keras.DTypePolicy:
    policy = layer.dtype_policy
    is_map = isinstance(policy, dtype_policies.DTypePolicyMap)
    return policy[layer.path] if is_map else policy


def _without_quantized(
    policy: keras.DTypePolicy,
) -> dtype_policies.DTypePolicyMap:
    if not isinstance(policy, dtype_policies.DTypePolicyMap):
        return dtype_policies.DTypePolicyMap(policy)
    kept = {path: p for path, p in policy.items() if p.quantization_mode is None}
    return dtype_policies.DTypePolicyMap(policy.default_policy, kept)


def _check_quantizers(layer: keras.layers.Layer) -> None:
    """Raises `ValueError` for custom quantizers, which a policy cannot store."""
    config = getattr(layer, "quantization_config", None)
    if config is None or config.mode not in ("int8", "int4"):
        return
    own, default = config.activation_quantizer, type(config)().activation_quantizer
    if _config_of(own) != _config_of(default):
        raise ValueError(
            f"Layer '{layer.path}' is quantized with an `activation_quantizer` of its "
            "own, which the config of the layer that created it cannot hold. Quantize "
            "with a mode, as in `model.quantize('int8')`, or save only the weights. "
            f"Received: activation_quantizer={own!r}."
        )


def _config_of(quantizer: keras.quantizers.Quantizer | None) -> Any:
    if quantizer is None:
        return None
    # A loaded quantizer has lists in place of tuples.
    return type(quantizer), json.dumps(quantizer.get_config(), sort_keys=True)


def _snake_case(name: str) -> str:
    """Returns the default name of Keras for layers of a class."""
    name = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", re.sub(r"\W+", "", name))
    return re.sub("([a-z])([A-Z])", r"\1_\2", name).lower()
