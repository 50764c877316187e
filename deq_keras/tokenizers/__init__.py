"""Tokenizers of language models: text to ids, and back."""

from deq_keras.tokenizers.character_tokenizer import CharacterTokenizer
from deq_keras.tokenizers.vocabulary_tokenizer import VocabularyTokenizer

__all__ = ["CharacterTokenizer", "VocabularyTokenizer"]
