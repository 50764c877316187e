"""Bytes and their ids."""

import numpy as np

from . import token_ids


class ByteVocabulary:
    """The 256 bytes of UTF-8. It has an id for whatever a text may hold.

    Example:

    >>> ByteVocabulary().encode("né").tolist()
    [110, 195, 169]
    """

    size = 256

    def encode(self, text):
        """Returns the int32 ids `(num_bytes,)` of a text."""
        return np.frombuffer(text.encode("utf-8"), np.uint8).astype(np.int32)

    def decode(self, ids):
        """Returns the text of ids `(num_bytes,)`; U+FFFD for what is not UTF-8."""
        content = token_ids.checked(ids, self.size).astype(np.uint8).tobytes()
        return content.decode("utf-8", errors="replace")

    def tokenizer(self):
        """Returns the Keras layer of the same ids."""
        from keras_hub.tokenizers import ByteTokenizer  # Takes seconds.

        return ByteTokenizer(lowercase=False)
