"""Words and their ids."""

import re
from collections import Counter

import numpy as np

import deq_keras

from ...errors import InputError
from . import token_ids

END_OF_LINE = "<eos>"
UNKNOWN = "<unk>"

# Lines end at "\n" only, as in files: `str.splitlines` knows ten more ends.
_LINE = re.compile(r"[^\n]*\n|[^\n]+")


class WordVocabulary:
    """Ids of the words between white space, as Transformer-XL counts them.

    Every line, a blank one too, is its words and then `<eos>`, which has id 0. The
    words of the training text follow by descending count, equal ones in the order of
    their first appearance. `<unk>` is a word like any other; where the vocabulary has
    it, it stands for the words that the vocabulary lacks.

    Args:
        tokens: list of different str, in the order of ids. The first is `<eos>`.
        lower_case: bool. Whether `encode` makes words lower case. Defaults to `False`.

    Example:

    >>> vocabulary = WordVocabulary.from_text("to be or not to be")
    >>> vocabulary.tokens
    ['<eos>', 'to', 'be', 'or', 'not']
    >>> vocabulary.encode("not to be").tolist()
    [4, 1, 2, 0]
    """

    def __init__(self, tokens, lower_case=False):
        self.tokens = list(tokens)
        self.lower_case = lower_case
        self._ids = {token: index for index, token in enumerate(self.tokens)}
        self._unknown = self._ids.get(UNKNOWN)

    @classmethod
    def from_text(cls, text, lower_case=False, minimum_count=1):
        """Returns the vocabulary of a training text.

        Args:
            text: str.
            lower_case: bool. Whether words become lower case. Defaults to `False`.
            minimum_count: int. Words that the text has less often are taken for
                `<unk>`; from 2 on the vocabulary always has it. Defaults to `1`, which
                keeps all words.
        """
        counts = Counter()
        for words in _lines(text, lower_case):
            counts.update(words)
        if minimum_count > 1:
            rare = [word for word in counts if counts[word] < minimum_count]
            counts[UNKNOWN] += sum(counts.pop(word) for word in rare)
        counts.pop(END_OF_LINE, None)
        words = [word for word, _ in counts.most_common()]
        return cls([END_OF_LINE, *words], lower_case)

    @property
    def size(self):
        """How many ids there are."""
        return len(self.tokens)

    def encode(self, text):
        """Returns the int32 ids `(num_tokens,)` of a text.

        Raises:
            InputError: for a word that is not in the vocabulary, if `<unk>` is neither.
        """
        return np.fromiter(self._encoded(text), np.int32)

    def decode(self, ids):
        """Returns the text of ids `(num_tokens,)`: one space between words."""
        ids = token_ids.checked(ids, self.size)
        words = ("\n" if index == 0 else self.tokens[index] for index in ids)
        return " ".join(words).replace("\n ", "\n").replace(" \n", "\n")

    def tokenizer(self):
        """Returns the Keras layer of the same ids."""
        return deq_keras.tokenizers.WordTokenizer(
            self.tokens, lowercase=self.lower_case
        )

    def _encoded(self, text):
        for number, words in enumerate(_lines(text, self.lower_case), 1):
            for word in words:
                index = self._ids.get(word, self._unknown)
                if index is None:
                    raise InputError(self._lacks(word, number))
                yield index
            yield 0

    def _lacks(self, word, line):
        return (
            f"The word {word!r} in line {line} is not in the vocabulary of {self.size} "
            f"words, nor is {UNKNOWN}, which would stand for it. Use characters or "
            "bytes, or make the vocabulary with `minimum_count=2`, which takes rare "
            f"words for {UNKNOWN}."
        )


def _lines(text, lower_case):
    """Yields the words of each line."""
    for match in _LINE.finditer(text):
        line = match.group()
        yield (line.lower() if lower_case else line).split()
