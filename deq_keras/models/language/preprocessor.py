"""Converts texts to the inputs of a language model, and back."""

import json
import pathlib
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras_hub.layers import StartEndPacker
from keras_hub.models import CausalLMPreprocessor
from keras_hub.tokenizers import Tokenizer

from deq_keras.core.checks import check_boolean, check_count
from deq_keras.models.kerashub import PackagedPreprocessor


class TextPreprocessor(PackagedPreprocessor, CausalLMPreprocessor):
    """Converts text to the token ids of a language model, and back.

    A subclass sets `backbone_cls`. `DEQTransformerCausalLMPreprocessor` describes the
    arguments.
    """

    tokenizer_cls = Tokenizer

    def __init__(
        self,
        tokenizer: Any,
        sequence_length: int = 1024,
        add_start_token: bool = True,
        add_end_token: bool = True,
        **kwargs: Any,
    ) -> None:
        own_length = getattr(tokenizer, "sequence_length", None)
        if own_length is not None:
            raise ValueError(
                "`tokenizer` must not cut or pad texts, which the preprocessor does. "
                "Make it with `sequence_length=None`. Received: a tokenizer with "
                f"sequence_length={own_length}."
            )
        super().__init__(
            tokenizer,
            check_count("sequence_length", sequence_length),
            check_boolean("add_start_token", add_start_token),
            check_boolean("add_end_token", add_end_token),
            **kwargs,
        )

    def build(self, input_shape: Any) -> None:
        del input_shape
        special_values = {
            f"{name}_value": getattr(self.tokenizer, f"{name}_token_id", None)
            for name in ("start", "end", "pad")
        }
        self.packer = StartEndPacker(
            self.sequence_length, return_padding_mask=True, **special_values
        )
        self.built = True

    def generate_preprocess(self, x: Any, sequence_length: int | None = None) -> Any:
        """Returns prompts as ids, with free positions for generation. Runs eagerly.

        Args:
            x: String, list of strings or string tensor.
            sequence_length: Positive integer. Number of tokens of the prompt and the
                generated text. Defaults to `None`, the preprocessor's.

        Returns:
            Dict of `"token_ids"` and `"padding_mask"`, `(batch, sequence_length)`, or
            `(sequence_length,)` for one string.

        Raises:
            ValueError: If a prompt is empty, or fills all positions.
        """
        if not self.built:
            self.build(None)
        length = self.sequence_length if sequence_length is None else sequence_length
        texts = tf.convert_to_tensor(x)
        is_text = texts.dtype == tf.string and texts.shape.rank in (0, 1)
        if not tf.executing_eagerly() or not is_text:
            raise ValueError(
                "Prompts must be a string or a list of strings, and not in a graph "
                "such as that of `Dataset.map`, where their lengths are unknown. "
                f"Received: x={x}"
            )
        token_ids, padding_mask = self.packer(
            self.tokenizer(tf.reshape(texts, [-1])),
            sequence_length=check_count("sequence_length", length),
            add_start_value=self.add_start_token,
            add_end_value=False,
        )
        outputs = {"token_ids": token_ids, "padding_mask": padding_mask}
        check_prompts(outputs)
        if texts.shape.rank == 0:
            return {name: values[0] for name, values in outputs.items()}
        return outputs

    def generate_postprocess(self, x: Any) -> Any:
        """Returns the texts of ids, without padding and special tokens.

        Args:
            x: Dict of `"token_ids"` and `"padding_mask"`, from `generate_preprocess` or
                the model.

        Returns:
            String, or a list of strings for a batch.
        """
        token_ids = tf.convert_to_tensor(x["token_ids"])
        mask = tf.cast(x["padding_mask"], "bool")
        for special_id in self.tokenizer.special_token_ids:
            mask &= token_ids != special_id
        return self.tokenizer.detokenize(tf.ragged.boolean_mask(token_ids, mask))

    # KerasHub's two methods fail for tokenizers without files, such as one of bytes.
    def save_to_preset(self, preset_dir: str | pathlib.Path) -> Any:
        """See `keras_hub.models.Preprocessor.save_to_preset`."""
        if self.tokenizer.file_assets is not None:
            return super().save_to_preset(preset_dir)
        folder = pathlib.Path(preset_dir)
        folder.mkdir(parents=True, exist_ok=True)
        config = json.dumps(keras.saving.serialize_keras_object(self), indent=4)
        (folder / self.config_file).write_text(config, encoding="utf-8")

    def load_preset_assets(self, preset: str) -> None:
        if self.tokenizer.file_assets is not None:
            super().load_preset_assets(preset)


def check_prompts(inputs: Any) -> None:
    """Raises `ValueError` if a prompt is empty or fills all positions.

    Args:
        inputs: Dict with or without a `"padding_mask"`, `(batch, max_length)`.
    """
    mask = inputs.get("padding_mask")
    if mask is None:
        return
    lengths, max_length = np.sum(mask, axis=-1), np.shape(mask)[-1]
    if np.any(lengths == 0) or np.any(lengths >= max_length):
        raise ValueError(
            "A prompt must have at least one token to continue, and leave at least one "
            "position for what is generated. Shorten the prompt; pass a larger "
            "`max_length` to `generate` or `sequence_length` to the preprocessor; or "
            "pad `token_ids` and `padding_mask`. "
            f"Received: prompts that fill {lengths} of {max_length} positions."
        )
