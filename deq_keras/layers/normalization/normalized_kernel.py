"""Keras layers whose kernel is normalized once per solve or once per call."""

import contextlib
import contextvars
from collections.abc import Iterator, Mapping
from typing import Any

import keras

from deq_keras.core.structure import at_least_float32

# Kernels that a cell computed in `inject`, by the `id` of their layer.
_FIXED: contextvars.ContextVar[Mapping[int, Any]] = contextvars.ContextVar(
    "deq_keras_fixed_kernels", default={}
)


def apply_kernel(layer: Any, inputs: Any, kernel: Any = None) -> Any:
    """Applies a layer, with its normalized kernel of this solve if it has one."""
    return layer(inputs) if kernel is None else layer(inputs, kernel=kernel)


_Layer: Any = object  # The layers that the mixin precedes have its attributes.


class NormalizedKernel(_Layer):
    """Mixin of a Keras layer that applies a function of its kernel variable.

    The base class must create `_kernel` in `build`, with output units on the last axis,
    like `keras.layers.Dense` and the convolutions. Subclasses implement
    `normalized_kernel(training=False)` and `_prepare_normalization(input_shape)`,
    which creates the weights of the normalization.
    """

    def build(self, input_shape: Any) -> None:
        if self.quantization_mode is not None:
            raise self._quantization_error(f"dtype={self.dtype_policy.name!r}")
        super().build(input_shape)  # Creates the variable `_kernel`.
        # `super().build` has marked the layer as built too early.
        self.built = False
        self._prepare_normalization(input_shape)
        self.built = True

    def add_weight(self, *args: Any, name: str | None = None, **kwargs: Any) -> Any:
        # The norm of a half-precision kernel would be less accurate than the variable.
        if name == "kernel":
            kwargs["autocast"] = False
        return super().add_weight(*args, name=name, **kwargs)

    @property
    def kernel(self) -> Any:
        """Returns the kernel that the layer applies, computed from its weights."""
        fixed = _FIXED.get().get(id(self))
        return self.normalized_kernel() if fixed is None else fixed

    @contextlib.contextmanager
    def fixed_kernel(self, kernel: Any) -> Iterator[None]:
        """Uses `kernel` for calls within a scope that cannot pass it as an argument."""
        token = _FIXED.set({**_FIXED.get(), id(self): kernel})
        try:
            yield
        finally:
            _FIXED.reset(token)

    def call(self, inputs: Any, kernel: Any = None, training: bool = False) -> Any:
        if kernel is None:
            kernel = _FIXED.get().get(id(self))
        if kernel is None:
            kernel = self.normalized_kernel(training=training)
        elif tuple(kernel.shape) != tuple(self._kernel.shape):
            raise ValueError(
                f"Layer '{self.name}' expected a `kernel` of shape "
                f"{tuple(self._kernel.shape)}, as `normalized_kernel()` returns it. "
                f"Received: kernel of shape {tuple(kernel.shape)}."
            )
        # Keras' layers read the attribute `kernel`.
        with self.fixed_kernel(kernel):
            return super().call(inputs)

    def _wide_kernel(self) -> Any:
        """Returns the kernel variable in float32 or better."""
        if not self.built:
            raise ValueError(
                f"Layer '{self.name}' has no kernel before it is built. Call "
                "`build(input_shape)`, or the layer on its inputs, first."
            )
        return at_least_float32(self._kernel)

    # Overridden because Keras stores only the plain kernel and bias.
    def save_own_variables(self, store: Any) -> None:
        keras.layers.Layer.save_own_variables(self, store)

    def load_own_variables(self, store: Any) -> None:
        keras.layers.Layer.load_own_variables(self, store)

    def enable_lora(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(
            f"Layer '{self.name}' does not support LoRA: a low-rank update would "
            "be added to the kernel variable, not to the normalized kernel."
        )

    def quantize(self, mode: Any = None, *args: Any, **kwargs: Any) -> Any:
        raise self._quantization_error(f"mode={mode!r}")

    def _quantization_error(self, received: str) -> Any:
        return NotImplementedError(
            f"Layer '{self.name}' cannot be quantized: copy `layer.kernel` into a "
            f"plain layer, and quantize that. Received: {received}."
        )
