"""Characters and their ids."""

import sys
from collections import Counter

import numpy as np

import deq_keras

from ...errors import InputError
from . import token_ids

UNKNOWN = "\ufffd"  # The replacement character of Unicode.


class CharacterVocabulary:
    """Ids of characters, in the order of their code points.

    A character that the vocabulary lacks becomes U+FFFD where the vocabulary has that.

    Args:
        tokens: list of different str of one character, in the order of ids.
        lower_case: bool. Whether `encode` makes text lower case. Defaults to `False`.

    Example:

    >>> vocabulary = CharacterVocabulary.from_text("banana")
    >>> vocabulary.tokens
    ['a', 'b', 'n']
    >>> vocabulary.encode("nab").tolist()
    [2, 0, 1]
    """

    def __init__(self, tokens, lower_case=False):
        self.tokens = list(tokens)
        self.lower_case = lower_case
        self._codes = _code_points("".join(self.tokens))  # (size,)
        self._ids = np.full(sys.maxunicode + 1, -1, np.int32)
        if UNKNOWN in self.tokens:
            self._ids[:] = self.tokens.index(UNKNOWN)
        self._ids[self._codes] = np.arange(self.size)

    @classmethod
    def from_text(cls, text, lower_case=False, minimum_count=1):
        """Returns the vocabulary of a training text.

        Args:
            text: str.
            lower_case: bool. Whether the text becomes lower case. Defaults to `False`.
            minimum_count: int. Characters that the text has less often are taken for
                U+FFFD; from 2 on the vocabulary always has it. Defaults to `1`, which
                keeps all characters.
        """
        counts = Counter(text.lower() if lower_case else text)
        tokens = {token for token, count in counts.items() if count >= minimum_count}
        if minimum_count > 1:
            tokens.add(UNKNOWN)
        return cls(sorted(tokens), lower_case)

    @property
    def size(self):
        """How many ids there are."""
        return len(self.tokens)

    def encode(self, text):
        """Returns the int32 ids `(num_characters,)` of a text.

        Raises:
            InputError: for a character that is not in the vocabulary, if U+FFFD is
                neither.
        """
        text = text.lower() if self.lower_case else text
        ids = self._ids[_code_points(text)]
        if (ids < 0).any():
            raise InputError(self._lacks(text, int(np.argmax(ids < 0))))
        return ids

    def decode(self, ids):
        """Returns the text of ids `(num_characters,)`."""
        codes = self._codes[token_ids.checked(ids, self.size)]
        return codes.tobytes().decode("utf-32-le")

    def tokenizer(self):
        """Returns the Keras layer of the same ids."""
        return deq_keras.tokenizers.CharacterTokenizer(
            self.tokens, lowercase=self.lower_case
        )

    def _lacks(self, text, position):
        line = text.count("\n", 0, position) + 1
        return (
            f"The character {text[position]!r} in line {line} is not in the vocabulary "
            f"of {self.size} characters, nor is U+FFFD, which would stand for it. Use "
            "bytes, or make the vocabulary with `minimum_count=2`, which takes rare "
            "characters for U+FFFD."
        )


def _code_points(text):
    return np.frombuffer(text.encode("utf-32-le"), "<u4")
