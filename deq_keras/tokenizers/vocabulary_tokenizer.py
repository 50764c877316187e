"""Base class of tokenizers whose ids are positions in a list of tokens."""

import collections
import json
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

import keras
import tensorflow as tf
from keras_hub.tokenizers import Tokenizer

from deq_keras.core.checks import check_boolean, check_count

VOCABULARY_FILE = "vocabulary.json"


class VocabularyTokenizer(Tokenizer):
    """Base class of tokenizers whose ids are positions in a list of tokens.

    Subclasses implement `split` and `join`, and also `count` and `order` for `learn`.
    The vocabulary is saved as an asset, not in the config.

    Args:
        vocabulary: List of unique strings, in the order of their ids. Defaults to
            `None`, to load it later.
        lowercase: Boolean. Whether to convert text to lower case. Defaults to `False`.
        dtype: Integer dtype of the ids. Defaults to `"int32"`.
        **kwargs: Arguments of `keras_hub.tokenizers.Tokenizer`, such as `name`.
    """

    unknown_token: str | None = None
    token_kind = "strings"

    def __init__(
        self,
        vocabulary: Iterable[str] | None = None,
        lowercase: bool = False,
        dtype: Any = "int32",
        **kwargs: Any,
    ) -> None:
        super().__init__(dtype=dtype, **kwargs)
        if not keras.backend.is_int_dtype(self.compute_dtype):
            raise ValueError(
                f"`dtype` must be an integer dtype. Received: dtype={dtype!r}."
            )
        self.lowercase = check_boolean("lowercase", lowercase)
        self.file_assets = [VOCABULARY_FILE]
        self.set_vocabulary(vocabulary)

    @classmethod
    def learn(
        cls, texts: Iterable[str], minimum_count: int = 1, lowercase: bool = False
    ) -> "VocabularyTokenizer":
        """Returns a tokenizer whose vocabulary is learned from a training text.

        Args:
            texts: Iterable of strings, such as lines.
            minimum_count: Positive integer. Rarer tokens become the unknown token. With
                at least 2, the vocabulary always has an unknown token. Defaults to `1`,
                which keeps all tokens.
            lowercase: Boolean. Whether to convert text to lower case. Defaults to
                `False`.
        """
        minimum_count = check_count("minimum_count", minimum_count)
        counts: collections.Counter = collections.Counter()
        for text in texts:
            counts.update(cls.count(text.lower() if lowercase else text))
        if minimum_count > 1:
            rare = [token for token in counts if counts[token] < minimum_count]
            counts[cls.unknown_token] += sum(counts.pop(token) for token in rare)
        return cls(cls.order(counts), lowercase=lowercase)

    @staticmethod
    def is_token(token: Any) -> bool:
        """Returns whether a value may be in the vocabulary."""
        return isinstance(token, str)

    @staticmethod
    def count(text: str) -> Iterable[str]:
        """Returns the tokens of a Python string, to count them."""
        raise NotImplementedError

    @staticmethod
    def order(counts: Mapping[str, int]) -> list[str]:
        """Returns the vocabulary of a `collections.Counter` of tokens."""
        raise NotImplementedError

    def split(self, texts: Any) -> Any:
        """Returns the tokens `(..., num_tokens)` of a string tensor."""
        raise NotImplementedError

    def join(self, tokens: Any) -> Any:
        """Returns the texts of string tokens `(..., num_tokens)`."""
        raise NotImplementedError

    def tokenize(self, inputs: Any) -> Any:
        self.get_vocabulary()  # Raises an error without one.
        texts = tf.convert_to_tensor(inputs)
        if self.lowercase:
            texts = tf.strings.lower(texts, encoding="utf-8")
        return tf.ragged.map_flat_values(self._ids_of, self.split(texts))

    def detokenize(self, inputs: Any) -> Any:
        self.get_vocabulary()
        if isinstance(inputs, list | tuple):
            inputs = tf.ragged.constant(inputs, dtype="int32")
        tokens = tf.ragged.map_flat_values(
            lambda ids: tf.gather(self._tokens, ids), inputs
        )
        return python_strings(self.join(tokens))

    def set_vocabulary(self, vocabulary: Iterable[str] | None) -> None:
        """Sets the list of tokens. `None` removes it."""
        self.vocabulary: list[str] | None = None
        if vocabulary is None:
            return
        self.vocabulary = list(vocabulary)
        for token in self.vocabulary:
            if isinstance(vocabulary, str | Mapping) or not self.is_token(token):
                raise ValueError(
                    f"`vocabulary` must be a list of {self.token_kind}. Received: "
                    f"{token!r} in a vocabulary of type {type(vocabulary).__name__}."
                )
        self._ids: dict[str | None, int] = {
            token: index for index, token in enumerate(self.vocabulary)
        }
        if len(self._ids) < len(self.vocabulary) or not self._ids:
            raise ValueError(
                "Argument `vocabulary` must be a list of different tokens. Received: "
                f"{len(self.vocabulary)} tokens, {len(self._ids)} of them different."
            )
        self._tokens = tf.constant(self.vocabulary)
        self._table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(
                self._tokens, tf.range(len(self.vocabulary), dtype="int64")
            ),
            default_value=self._ids.get(self.unknown_token, -1),
        )

    def get_vocabulary(self) -> list[str]:
        if self.vocabulary is None:
            raise ValueError(
                f"`{type(self).__name__}` has no vocabulary yet. Pass the argument "
                "`vocabulary`, or call `load_assets`."
            )
        return list(self.vocabulary)

    def vocabulary_size(self) -> int:
        return len(self.get_vocabulary())

    def id_to_token(self, id: int) -> str:
        vocabulary = self.get_vocabulary()
        if not 0 <= id < len(vocabulary):
            raise ValueError(
                f"Argument `id` must be in the range [0, {len(vocabulary)}). "
                f"Received: id={id}"
            )
        return vocabulary[id]

    def token_to_id(self, token: str) -> int:
        self.get_vocabulary()
        if token not in self._ids:
            raise ValueError(self._lacks(token))
        return self._ids[token]

    def save_assets(self, dir_path: str) -> None:
        content = json.dumps(self.get_vocabulary(), ensure_ascii=False, indent=0)
        pathlib.Path(dir_path, VOCABULARY_FILE).write_text(content, encoding="utf-8")

    def load_assets(self, dir_path: str) -> None:
        file = pathlib.Path(dir_path, VOCABULARY_FILE)
        self.set_vocabulary(json.loads(file.read_text(encoding="utf-8")))

    def get_config(self) -> dict[str, Any]:
        config = {"vocabulary": None, "lowercase": self.lowercase}
        return {**super().get_config(), **config}

    def _ids_of(self, tokens: tf.Tensor) -> tf.Tensor:
        ids = self._table.lookup(tokens)
        unknown = tf.boolean_mask(tokens, ids < 0)
        if tf.executing_eagerly() and len(unknown):
            raise ValueError(self._lacks(python_strings(unknown)[0]))
        tf.debugging.assert_equal(tf.size(unknown), 0, self._lacks("a token"))
        return tf.cast(ids, self.compute_dtype)

    def _lacks(self, token: str) -> str:
        return (
            f"The vocabulary of {len(self._ids)} tokens must have each token of "
            f"the text, or {self.unknown_token!r} in their place. Received: {token!r}"
        )


def python_strings(texts: tf.Tensor) -> Any:
    """Converts a string tensor to a string or list of strings in eager execution.

    In a graph, returns the tensor unchanged, like KerasHub's tokenizers.

    Example:

    >>> python_strings(tf.constant(["n\\u00e9", "b"]))
    ['né', 'b']
    """
    if not tf.executing_eagerly():
        return texts
    return _decode(texts.numpy())


def _decode(values: Any) -> Any:
    if isinstance(values, bytes):
        return values.decode("utf-8")
    return [*map(_decode, values)]
