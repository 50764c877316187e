"""Explicit layers before an equilibrium, both with a memory."""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras

from deq_keras.core.serialization import Config, arguments_of
from deq_keras.layers import SegmentMemory, TransformerStack


@keras.saving.register_keras_serializable(package="deq_keras")
class StartedEquilibrium(keras.layers.Layer):
    """Explicit layers whose output an equilibrium continues.

    Both remember the previous segments. A `LanguageBackbone` uses this layer in place
    of a `SegmentMemory`.

    Args:
        explicit: `TransformerStack`.
        equilibrium: `SegmentMemory` of the same length.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        inputs: See `SegmentMemory`, also for the next two.
        mask: See `inputs`.
        training: See `inputs`.
    """

    def __init__(
        self, explicit: TransformerStack, equilibrium: SegmentMemory, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.explicit, self.equilibrium = explicit, equilibrium
        self.supports_masking = True

    def build(self, inputs_shape: Any) -> None:
        self.explicit.build(inputs_shape)
        self.equilibrium.build(self.explicit.compute_output_shape(inputs_shape))

    def call(self, inputs: Any, mask: Any = None, training: bool | None = None) -> Any:
        hidden = self.explicit(inputs, mask=mask, training=training)
        return self.equilibrium(hidden, mask=mask, training=training)

    def compute_output_shape(self, inputs_shape: Any) -> Any:
        hidden_shape = self.explicit.compute_output_shape(inputs_shape)
        return self.equilibrium.compute_output_shape(hidden_shape)

    @property
    def deq(self) -> Any:
        """The equilibrium layer."""
        return self.equilibrium.deq

    @property
    def length(self) -> int:
        """Number of remembered positions."""
        return self.equilibrium.length

    @length.setter
    def length(self, length: int) -> None:
        self.explicit.length = self.equilibrium.length = length

    def reset_memory(self) -> None:
        """Empties the memories."""
        self.explicit.reset_memory()
        self.equilibrium.reset_memory()

    @contextlib.contextmanager
    def reading_segments(self) -> Iterator[None]:
        """Returns a scope in which every call continues the previous segment."""
        with self.explicit.reading_segments(), self.equilibrium.reading_segments():
            yield

    def get_config(self) -> Config:
        return {**super().get_config(), **arguments_of(self, StartedEquilibrium)}

    @classmethod
    def from_config(cls, config: Config) -> Any:
        return cls(**keras.saving.deserialize_keras_object(config))
