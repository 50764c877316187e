"""Converts texts to the inputs of a language model, and back."""

import json
import pathlib

import keras
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
        tokenizer,
        sequence_length=1024,
        add_start_token=True,
        add_end_token=True,
        **kwargs,
    ):
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

    def build(self, input_shape):
        del input_shape
        special_values = {
            f"{name}_value": getattr(self.tokenizer, f"{name}_token_id", None)
            for name in ("start", "end", "pad")
        }
        self.packer = StartEndPacker(
            self.sequence_length, return_padding_mask=True, **special_values
        )
        self.built = True

    def generate_preprocess(self, x, sequence_length=None):
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
        token_ids = self.tokenizer(tf.reshape(texts, [-1]))
        lengths = [len(row) for row in token_ids]
        if self.add_start_token and self.packer.start_value is not None:
            lengths = [one + len(self.packer.start_value) for one in lengths]
        if min(lengths) == 0:
            raise ValueError(
                "A prompt must have at least one token to continue. Received: an empty "
                f"text at index {lengths.index(0)}."
            )
        longest = max(lengths)
        if longest >= length:
            raise ValueError(
                "A prompt must leave at least one position for what is generated. "
                f"Received: a prompt of {longest} tokens at index "
                f"{lengths.index(longest)}, where {length} positions are the limit. "
                "Shorten the prompt, or pass a larger `max_length` to `generate` or "
                "`sequence_length` to the preprocessor."
            )
        token_ids, padding_mask = self.packer(
            token_ids,
            sequence_length=length,
            add_start_value=self.add_start_token,
            add_end_value=False,
        )
        outputs = {"token_ids": token_ids, "padding_mask": padding_mask}
        if texts.shape.rank == 0:
            return {name: values[0] for name, values in outputs.items()}
        return outputs

    def generate_postprocess(self, x):
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
    def save_to_preset(self, preset_dir):
        """See `keras_hub.models.Preprocessor.save_to_preset`."""
        if self.tokenizer.file_assets is not None:
            return super().save_to_preset(preset_dir)
        folder = pathlib.Path(preset_dir)
        folder.mkdir(parents=True, exist_ok=True)
        config = json.dumps(keras.saving.serialize_keras_object(self), indent=4)
        (folder / self.config_file).write_text(config, encoding="utf-8")

    def load_preset_assets(self, preset):
        if self.tokenizer.file_assets is not None:
            super().load_preset_assets(preset)
