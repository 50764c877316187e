"""Text to model: corpora, vocabularies, and the segments that training reads."""

from training.data.text.batches import segments
from training.data.text.byte_vocabulary import ByteVocabulary
from training.data.text.character_vocabulary import CharacterVocabulary
from training.data.text.corpus import (
    Corpus,
    embedded,
    from_directory,
    from_file,
    from_tfds,
)
from training.data.text.download import fetch
from training.data.text.subword_vocabulary import SubwordVocabulary
from training.data.text.vocabulary import find_vocabulary, load_vocabulary
from training.data.text.word_vocabulary import WordVocabulary

__all__ = [
    "ByteVocabulary",
    "CharacterVocabulary",
    "Corpus",
    "SubwordVocabulary",
    "WordVocabulary",
    "embedded",
    "fetch",
    "find_vocabulary",
    "from_directory",
    "from_file",
    "from_tfds",
    "load_vocabulary",
    "segments",
]
