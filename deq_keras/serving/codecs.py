"""Decode requests and encode responses in the graph of an export."""

import tensorflow as tf
from keras_hub.layers import StartEndPacker

from deq_keras.core.checks import check_choice, check_count, check_counts

_PNG = b"\x89PNG\r\n\x1a\n"


class EncodedImages:
    """Decodes and resizes images in the graph: a `preprocessor` of exports.

    A file that cannot be decoded becomes an image of NaN. An equilibrium layer isolates
    such a sample from the rest of the request: its `status` is 2, and `ClassNames`
    returns `unknown` for it.

    Args:
        size: Tuple of two positive integers, height and width of the images. Resizing
            is bilinear and ignores the aspect ratio.
        channels: `1` or `3`. Defaults to `3`.
        converter: Optional function of float32 images `(batch, height, width,
            channels)` of pixels from 0 to 255, such as an `MDEQImageConverter`.
            Defaults to `None`.

    Call arguments:
        encoded: String tensor `(batch,)`: contents of PNG files, JPEG files and BMP
            files of 24 bits. Other files cannot be decoded, among them GIF and WebP
            files and BMP files with a palette.

    Returns:
        Float32 tensor `(batch, height, width, channels)`.

    Example:

    >>> file = tf.io.encode_png(np.full((4, 4, 3), 7, "uint8"))
    >>> images = EncodedImages((2, 2))(tf.stack([file, "no image"]))
    >>> images[:, 0, 0, 0].numpy()
    array([ 7., nan], dtype=float32)
    """

    input_signature = tf.TensorSpec((None,), tf.string, name="inputs")

    def __init__(self, size, channels=3, converter=None):
        self.size = check_counts("size", size)
        if len(self.size) != 2:
            raise ValueError(f"`size` must be (height, width). Received: {size=!r}.")
        self.channels = int(check_choice("channels", str(channels), ("1", "3")))
        self.converter = converter
        self._shape = (*self.size, self.channels)

    def __call__(self, encoded):
        spec = tf.TensorSpec(self._shape, tf.float32)
        images = tf.map_fn(self._decoded_or_nan, encoded, fn_output_signature=spec)
        return images if self.converter is None else self.converter(images)

    def _decoded_or_nan(self, encoded):
        # In a graph, only a dataset can continue after an error.
        image = tf.data.Dataset.from_tensors(encoded).map(self._decoded).ignore_errors()
        otherwise = tf.data.Dataset.from_tensors(tf.fill(self._shape, float("nan")))
        return image.concatenate(otherwise).take(1).get_single_element()

    def _decoded(self, encoded):
        # `tf.io.decode_image` ignores palettes of BMP files and parts of GIF files.
        image = tf.case(
            [
                (
                    tf.strings.substr(encoded, 0, len(_PNG)) == _PNG,
                    lambda: tf.io.decode_png(encoded, self.channels),
                ),
                (
                    tf.io.is_jpeg(encoded),
                    lambda: tf.io.decode_jpeg(encoded, self.channels),
                ),
            ],
            default=lambda: self._decoded_bitmap(encoded),
        )
        image.set_shape((None, None, self.channels))
        resized = tf.image.resize(image, self.size)
        return tf.ensure_shape(resized, self._shape)

    def _decoded_bitmap(self, encoded):
        # Bytes 28 to 33 are the bits of a pixel and the compression, 0 for none.
        has_colors = tf.strings.substr(encoded, 28, 6) == b"\x18" + 5 * b"\0"
        with tf.control_dependencies([tf.debugging.Assert(has_colors, ["No image."])]):
            return tf.io.decode_bmp(encoded, self.channels)


class ClassNames:
    """Returns the name of the most likely class: a `postprocessor` of exports.

    Args:
        names: List of strings, one for each class.
        unknown: String, for samples that failed, such as samples with a non-finite
            input. Defaults to `""`.

    Call arguments:
        outputs: Float tensor `(batch, classes)`.
        inputs: Ignored.
        failed: Boolean tensor `(batch,)`, or `None`.

    Returns:
        String tensor `(batch,)`.

    Example:

    >>> outputs = tf.constant([[0.1, 0.9], [0.8, 0.2]])
    >>> names = ClassNames(["cat", "dog"])
    >>> names(outputs, failed=tf.constant([False, True])).numpy().tolist()
    [b'dog', b'']
    """

    def __init__(self, names, unknown=""):
        self.names = list(names)
        self.unknown = unknown
        if not self.names or not all(isinstance(name, str) for name in self.names):
            raise ValueError(f"`names` must be strings. Received: names={names!r}.")

    def __call__(self, outputs, inputs=None, failed=None):
        if outputs.shape[1:] != (len(self.names),):
            raise ValueError(
                f"Expected outputs of shape (batch, {len(self.names)}), for as many "
                f"names. Received: shape {outputs.shape}."
            )
        names = tf.gather(tf.constant(self.names), tf.argmax(outputs, axis=-1))
        return names if failed is None else tf.where(failed, self.unknown, names)


class Prompts(tf.Module):
    """Turns texts into token ids in the graph: a `preprocessor` of exports.

    Texts are truncated or padded to `sequence_length`; padding changes no output. A
    tokenizer without a token for unknown words fails a whole request if one text has
    such a word, so the check of an export rejects it.

    Args:
        tokenizer: `keras_hub.tokenizers.Tokenizer` that works in a graph, such as the
            tokenizers in `deq_keras.tokenizers`.
        sequence_length: Positive integer. Number of tokens.

    Call arguments:
        texts: String tensor `(batch,)`.

    Returns:
        Dict of `"token_ids"` and `"padding_mask"`, `(batch, sequence_length)`: the
        inputs of a `deq_keras.models.DEQTransformerCausalLM`.

    Example:

    >>> tokenizer = deq_keras.tokenizers.WordTokenizer(["<unk>", "to", "be", "or"])
    >>> Prompts(tokenizer, 4)(tf.constant(["to be", "or not to be"]))["token_ids"]
    <tf.Tensor: shape=(2, 4), dtype=int32, numpy=
    array([[1, 2, 0, 0],
           [3, 0, 1, 2]], dtype=int32)>
    """

    input_signature = tf.TensorSpec((None,), tf.string, name="inputs")

    def __init__(self, tokenizer, sequence_length):
        super().__init__()
        self.tokenizer = tokenizer
        self.packer = StartEndPacker(
            check_count("sequence_length", sequence_length), return_padding_mask=True
        )

    def __call__(self, texts):
        token_ids, padding_mask = self.packer(self.tokenizer(texts))
        return {"token_ids": token_ids, "padding_mask": padding_mask}


class NextTokens:
    """Returns the most likely next token of each text: a `postprocessor` of exports.

    Args:
        tokenizer: `keras_hub.tokenizers.Tokenizer`.

    Call arguments:
        outputs: Float tensor `(batch, length, vocabulary_size)`.
        inputs: Dict with the `"padding_mask"` `(batch, length)` of a `Prompts`.
        failed: Ignored: the inputs of a language model are always finite.

    Returns:
        String tensor `(batch,)`; empty for a text without tokens.
    """

    def __init__(self, tokenizer):
        size = tokenizer.vocabulary_size()
        self.tokens = [tokenizer.id_to_token(i) for i in range(size)]

    def __call__(self, outputs, inputs, failed=None):
        lengths = tf.reduce_sum(tf.cast(inputs["padding_mask"], tf.int32), axis=1)
        last = tf.gather(outputs, tf.maximum(lengths - 1, 0), axis=1, batch_dims=1)
        tokens = tf.gather(tf.constant(self.tokens), tf.argmax(last, axis=-1))
        return tf.where(lengths > 0, tokens, "")
