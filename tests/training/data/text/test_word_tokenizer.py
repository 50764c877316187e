"""`WordTokenizer` splits, lowers and counts words as Python does."""

import keras
import numpy as np
import pytest

from training.data.text import WordTokenizer

WORDS = ["<eos>", "to", "be", "naïve", "🜚", "<unk>"]


@pytest.mark.parametrize(
    "text, ids",
    [
        ("to be", [1, 2]),
        ("to be\n", [1, 2, 0]),
        ("\n\n to\n", [0, 0, 1, 0]),
        ("naïve\x0b🜚\u2028be", [3, 4, 2]),  # White space, but no line ends.
        ("to zebra", [1, 5]),
        ("", []),
    ],
)
def test_words_between_white_space(text, ids):
    np.testing.assert_array_equal(WordTokenizer(WORDS)(text), ids)


def test_white_space_equals_python():
    text = "".join(f"x{chr(code)}" for code in range(0x3100)).replace("\n", " ")
    vocabulary = sorted(set(text.split()))
    ids = WordTokenizer(vocabulary)(text)
    assert [vocabulary[index] for index in np.array(ids)] == text.split()


@pytest.mark.parametrize("text", ["to be\n\n\nnaïve 🜚\n", "to\nbe", "\nto", "<unk>"])
def test_words_survive_a_round_trip(text):
    tokenizer = WordTokenizer(WORDS)
    assert tokenizer.detokenize(tokenizer(text)) == text


@pytest.mark.parametrize("text", ["ÀÉ", "ΑΣ ΣΑ", "İI", "ẞ"])
def test_lower_case_equals_python(text):
    vocabulary = ["<eos>", *text.lower().split()]
    ids = WordTokenizer(vocabulary, lowercase=True)(text)
    assert [vocabulary[i] for i in np.array(ids)] == text.lower().split()


def test_words_are_ordered_by_count():
    texts = ["b a\n", "c b <eos> A\n"]
    learnt = WordTokenizer.learn(texts).get_vocabulary()
    assert learnt == ["<eos>", "b", "a", "c", "A"]
    lowercase = WordTokenizer.learn(texts, lowercase=True)
    assert lowercase.get_vocabulary() == ["<eos>", "b", "a", "c"]
    assert lowercase("B") == [1]


def test_rare_words_become_unknown():
    tokenizer = WordTokenizer.learn(["a a b c", " d d d"], minimum_count=2)
    assert tokenizer.get_vocabulary() == ["<eos>", "d", "a", "<unk>"]
    assert tokenizer("b") == [3]


def test_copy_reads_the_saved_vocabulary(tmp_path):
    tokenizer = WordTokenizer(WORDS)
    config = keras.saving.serialize_keras_object(tokenizer)
    copy = keras.saving.deserialize_keras_object(config)
    tokenizer.save_assets(tmp_path)
    copy.load_assets(tmp_path)
    texts = ["🜚 to\n", "", "be"]
    assert copy(texts) == tokenizer(texts)
    assert copy.detokenize(copy(texts)) == texts
