"""Tokenizers whose vocabularies are learned once and then read from a file."""

import contextlib
import functools
import hashlib
import json
from pathlib import Path

import keras_hub
import tensorflow as tf

from deq_keras.tokenizers import CharacterTokenizer

from ...errors import InputError
from ...files import atomic_file
from .segments import lines
from .word_tokenizer import WordTokenizer

_LEARNED = {
    "word": WordTokenizer,
    "character": CharacterTokenizer,
    "subword": keras_hub.tokenizers.WordPieceTokenizer,
}


def find_tokenizer(
    level,
    training_text,
    directory=None,
    lower_case=False,
    minimum_count=1,
    vocabulary_size=None,
):
    """Returns the tokenizer of a training text, and a function that caches it.

    The cache is the text file `vocabulary.<level>.json` with one token per line. It
    also holds the arguments and digests of the training text and of the tokens. If the
    text differs, or if the file is corrupt, the vocabulary is learned, and the file
    replaced. In a read-only folder, every process learns the vocabulary.

    Args:
        level: `"word"`, `"character"`, `"subword"` or `"byte"`.
        training_text: String. The training split alone.
        directory: Optional folder of the cache to read. Defaults to no cache. Bytes
            need no cache.
        lower_case: Boolean. Whether text becomes lower case. Not for bytes. Defaults to
            `False`.
        minimum_count: Positive integer. Rarer tokens of the training text become
            `<unk>`, rarer characters U+FFFD. Not for bytes and subwords. Defaults to
            `1`.
        vocabulary_size: Positive integer. The most subwords; required for subwords and
            only for them.

    Returns:
        A `WordTokenizer`, a `CharacterTokenizer`, or KerasHub's `WordPieceTokenizer` or
        `ByteTokenizer`; and a function of the folder of the cache, which writes it and
        creates the folder if needed.

    Raises:
        InputError: If an argument is invalid, or the cache has another vocabulary: a
            model that was trained with it would read other tokens.
    """
    arguments = _arguments(level, lower_case, minimum_count, vocabulary_size)
    if level == "byte":
        return keras_hub.tokenizers.ByteTokenizer(lowercase=False), _keep_nothing
    cls, name = _LEARNED[level], f"vocabulary.{level}.json"
    digest = hashlib.sha256(training_text.encode()).hexdigest()
    key = {"lower_case": lower_case, **arguments, "sha256_of_training_text": digest}
    cached = None if directory is None else _read_cache(Path(directory) / name)
    if cached is not None and cached == {**cached, **key}:
        return cls(cached["tokens"], lowercase=lower_case), _keep_nothing
    try:
        if level == "subword":
            tokens = _word_pieces(training_text, lower_case, vocabulary_size)
            tokenizer = cls(tokens, lowercase=lower_case)
        else:
            tokenizer = cls.learn(
                lines(training_text), lowercase=lower_case, **arguments
            )
    except ValueError as error:
        raise InputError(str(error)) from error
    tokens = tokenizer.get_vocabulary()
    if cached is not None and cached["tokens"] != tokens:
        raise InputError(
            f"The training text has another vocabulary than {Path(directory) / name}, "
            "which the model reads by: the text was changed since the run began. Put "
            "back the text, or start a run in another work directory."
        )
    content = {**key, "sha256_of_tokens": _digest(tokens), "tokens": tokens}
    return tokenizer, functools.partial(_keep, name, content)


def _word_pieces(training_text, lower_case, vocabulary_size):
    """Returns a vocabulary of `WordPieceTokenizer` that knows all characters."""
    texts = tf.data.Dataset.from_tensor_slices(list(lines(training_text))).batch(1024)
    tokens = keras_hub.tokenizers.compute_word_piece_vocabulary(
        texts, vocabulary_size, lowercase=lower_case, reserved_tokens=["[UNK]"]
    )
    # Vocabulary files strip white space, which can end a token (U+00A0, U+3000).
    tokens = [token for token in tokens if token == token.rstrip()]
    inside = {f"##{token}" for token in tokens if len(token) == 1}
    if not inside or not inside <= set(tokens):
        raise ValueError(
            "`data.vocabulary_size` must be more than twice the number of different "
            "characters of the text: each is a token at the start of words and one "
            f"inside. Received: vocabulary_size={vocabulary_size}."
        )
    return tokens


def _keep(name, content, directory):
    file = Path(directory) / name
    with contextlib.suppress(OSError):  # The cache only saves time.
        file.parent.mkdir(parents=True, exist_ok=True)
        atomic_file.write_text(file, json.dumps(content, ensure_ascii=False, indent=0))


def _keep_nothing(directory):
    """Does nothing: bytes need no cache, or the cache is up to date."""


def _digest(tokens):
    return hashlib.sha256(json.dumps(tokens).encode()).hexdigest()


def _read_cache(file):
    """Returns the contents of a cache whose tokens are intact, or `None`."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        is_intact = content["sha256_of_tokens"] == _digest(content["tokens"])
    except (KeyError, OSError, RecursionError, TypeError, ValueError):
        return None
    return content if is_intact else None


def _arguments(level, lower_case, minimum_count, vocabulary_size):
    """Returns the arguments of learning a vocabulary, and checks them."""
    if level == "byte" and (lower_case or minimum_count != 1):
        raise InputError(
            "Bytes are always these 256. Expected: lower_case=False, minimum_count=1. "
            f"Received: lower_case={lower_case}, minimum_count={minimum_count}."
        )
    if (level == "subword") != (vocabulary_size is not None):
        raise InputError(
            "`data.vocabulary_size` is for subwords, which need it, and for no other "
            f"tokens. Received: {level}, vocabulary_size={vocabulary_size}."
        )
    if level != "subword":
        return {"minimum_count": minimum_count}
    if minimum_count != 1:
        raise InputError(
            "Subwords have a `vocabulary_size`, but no `minimum_count`. Received: "
            f"minimum_count={minimum_count}."
        )
    return {"vocabulary_size": vocabulary_size}
