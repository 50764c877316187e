import numpy as np
import pytest
import tensorflow as tf

from deq_keras.tokenizers import SubwordTokenizer

TEXTS = [
    "low lower lowest, new newer newest: ##\n",
    "    if (naïve_🜚):\n",
    "東京, Łódź! # comment\n",
]
UNKNOWN = "\ufffd"


@pytest.fixture(scope="module")
def tokenizer():
    return SubwordTokenizer.learn(TEXTS * 20, 140)


@pytest.mark.parametrize(
    "text",
    [
        *TEXTS,
        "".join(TEXTS),
        "lower",
        " lower  newest ",
        "\n\n  ,new(lowest)\n",
        "##low",
        "new" + 50 * " " + "new",
        "",
    ],
)
def test_text_survives_a_round_trip(tokenizer, text):
    ids = tokenizer(text)
    assert tokenizer.detokenize(ids) == text
    assert not np.any(np.array(ids) == tokenizer.token_to_id(UNKNOWN))


def test_frequent_words_are_one_token(tokenizer):
    assert np.shape(tokenizer("low lowest newest,")) == (4,)
    assert tokenizer.vocabulary_size() <= 140


def test_case_is_kept_unless_asked_for(tokenizer):
    assert tokenizer.detokenize(tokenizer("Łódź")) == "Łódź"
    lowercase = SubwordTokenizer.learn(TEXTS * 20, 140, lowercase=True)
    assert lowercase.detokenize(lowercase("ŁÓDŹ, Low")) == "łódź, low"


def test_a_word_with_an_unknown_character(tokenizer):
    assert tokenizer.detokenize(tokenizer("low Ω lower")) == f"low{UNKNOWN} lower"
    assert tokenizer.detokenize(tokenizer("low\u00a0lower\t\x07new")) == "low lower new"


def test_a_text_that_begins_inside_a_word(tokenizer):
    ids = np.array(tokenizer("lowes"))
    assert len(ids) > 1
    rest = tokenizer.detokenize(ids[1:])
    assert "lowes".endswith(rest)


def test_learns_from_a_dataset(tokenizer):
    dataset = tf.data.Dataset.from_tensor_slices(TEXTS * 20).batch(4)
    learnt = SubwordTokenizer.learn(dataset, 140).get_vocabulary()
    assert learnt == tokenizer.get_vocabulary()


@pytest.mark.parametrize("size", [1, 20, 60])
def test_no_room_for_the_characters(size):
    with pytest.raises(ValueError, match=f"vocabulary_size={size}"):
        SubwordTokenizer.learn(TEXTS * 20, size)
