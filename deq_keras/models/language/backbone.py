"""The backbone that language models share."""

from typing import Any

import keras
from keras import ops
from keras_hub.models import Backbone

from deq_keras.core.checks import check_rate
from deq_keras.layers import VariationalDropout
from deq_keras.models.kerashub import PackagedBackbone
from deq_keras.models.language.segments import SegmentReading


class LanguageBackbone(SegmentReading, PackagedBackbone, Backbone):
    """An embedding and a layer with the depth of the model, with dropout after each.

    A subclass creates the embedding and the layer, which remembers earlier segments.

    Args:
        token_embedding: Layer from token ids to vectors.
        segment_layer: `MemoryLayer` of these vectors. If it returns a list, the first
            tensor has the hidden states.
        embedding_dropout: Float in `[0, 1)`. Rate of the dropout of the vectors.
        output_dropout: Float in `[0, 1)`. Rate of the dropout of the hidden states.
        dtype: Dtype or policy of all layers.
        **kwargs: `name` and `trainable`.

    Call arguments:
        inputs: Integer tensor `(batch, length)`, or a dict of it as `"token_ids"`. A
            `"padding_mask"`, `(batch, length)`, false at padding, excludes padding from
            a solve. Without it, results depend on the amount of padding.

    Input shape:
        `(batch, length)`.

    Output shape:
        `(batch, length, hidden_dim)`.
    """

    # `noise_shape` of the dropout. `None`: masks differ between positions.
    noise_shape: tuple[int | None, ...] | None = (None, 1, None)

    def __init__(
        self,
        token_embedding: keras.layers.Layer,
        segment_layer: keras.layers.Layer,
        embedding_dropout: float,
        output_dropout: float,
        dtype: str | keras.DTypePolicy | None = None,
        **kwargs: Any,
    ) -> None:
        # === Layers ===
        rates = {
            "embedding_dropout": embedding_dropout,
            "output_dropout": output_dropout,
        }
        dropouts = [
            VariationalDropout(
                check_rate(name, rate),
                noise_shape=self.noise_shape,
                dtype=dtype,
                name=name,
            )
            for name, rate in rates.items()
        ]

        # === Functional Model ===
        token_ids = keras.Input((None,), dtype="int32", name="token_ids")
        hidden = segment_layer(dropouts[0](token_embedding(token_ids)))
        super().__init__(
            inputs=token_ids,
            outputs=dropouts[1](_last(hidden)),
            dtype=dtype,
            **kwargs,
        )

        # === Config ===
        self.token_embedding = token_embedding
        self.segment_layer = segment_layer
        self.embedding_dropout, self.output_dropout = dropouts
        self.vocabulary_size = token_embedding.vocabulary_size
        self.cutoffs = token_embedding.cutoffs

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        token_ids, padding_mask = token_ids_of(inputs), padding_mask_of(inputs)
        if padding_mask is None:
            return super().call(token_ids, training=training, mask=mask)
        # The functional model takes only token ids.
        embedded = self.embedding_dropout(
            self.token_embedding(token_ids), training=training
        )
        hidden = self.segment_layer(embedded, mask=padding_mask, training=training)
        return self.output_dropout(_last(hidden), training=training)

    @property
    def memory_length(self) -> int:
        """Number of remembered positions. Compile the model after you set it."""
        return self.segment_layer.length

    @memory_length.setter
    def memory_length(self, length: int) -> None:
        self.segment_layer.length = length


def token_ids_of(inputs: Any) -> Any:
    """Returns the token ids of plain ids or of the outputs of a preprocessor."""
    return inputs["token_ids"] if isinstance(inputs, dict) else inputs


def padding_mask_of(inputs: Any) -> Any:
    """Returns the Boolean padding mask of the outputs of a preprocessor, or `None`."""
    mask = inputs.get("padding_mask") if isinstance(inputs, dict) else None
    return None if mask is None else ops.cast(mask, "bool")


def _last(hidden: Any) -> Any:
    """Returns the hidden states of the last layer, which come first in a list."""
    return hidden[0] if isinstance(hidden, list) else hidden
