"""`CharacterTokenizer` restores text, also from its saved vocabulary."""

import json

import keras
import keras_hub
import numpy as np
import pytest
import tensorflow as tf

from deq_keras.tokenizers import CharacterTokenizer

CHARACTERS = ["\n", " ", "a", "n", "é", "🜚", "\ufffd"]


@pytest.fixture
def tokenizer():
    return CharacterTokenizer(CHARACTERS)


def test_characters_survive_a_round_trip(tokenizer):
    ids = tokenizer("🜚na\né")
    np.testing.assert_array_equal(ids, [5, 3, 2, 0, 4])
    assert tokenizer.detokenize(ids) == "🜚na\né"
    assert tokenizer.detokenize(tokenizer("aßa")) == "a\ufffda"


def test_unknown_without_a_token_for_it():
    tokenizer = CharacterTokenizer(["a"])
    with pytest.raises(ValueError, match="ß"):
        tokenizer("aß")
    with pytest.raises(ValueError, match="ß"):
        tokenizer.token_to_id("ß")
    dataset = tf.data.Dataset.from_tensors("aß").map(tokenizer)
    with pytest.raises(tf.errors.InvalidArgumentError):
        next(iter(dataset))


def test_batches(tokenizer):
    texts = ["🜚", "", "🜚 🜚\n"]
    ids = tokenizer(texts)
    assert [len(row) for row in ids] == [np.size(tokenizer(text)) for text in texts]
    assert tokenizer.detokenize(ids) == texts
    assert tokenizer.detokenize(tf.ragged.constant(ids)) == texts
    assert tokenizer.detokenize(np.array(ids[2:])) == texts[2:]


def test_maps_over_a_dataset(tokenizer):
    texts = ["🜚", "", "🜚 🜚\n"]
    batch = next(
        iter(tf.data.Dataset.from_tensor_slices(texts).batch(3).map(tokenizer))
    )
    assert batch.dtype == "int32"
    assert batch.to_list() == tokenizer(texts)
    restored = tf.data.Dataset.from_tensors(batch).map(tokenizer.detokenize)
    assert [text.decode() for text in next(iter(restored)).numpy()] == texts


def test_vocabulary(tokenizer):
    tokens = tokenizer.get_vocabulary()
    assert tokenizer.vocabulary_size() == len(tokens)
    for index, token in enumerate(tokens):
        assert tokenizer.token_to_id(token) == index
        assert tokenizer.id_to_token(index) == token
    with pytest.raises(ValueError, match=f"id={len(tokens)}"):
        tokenizer.id_to_token(len(tokens))


def test_vocabulary_is_an_asset(tokenizer, tmp_path):
    config = keras.saving.serialize_keras_object(tokenizer)
    assert "🜚" not in json.dumps(config, ensure_ascii=False)
    copy = keras.saving.deserialize_keras_object(config)
    assert isinstance(copy, keras_hub.tokenizers.Tokenizer)
    with pytest.raises(ValueError, match="vocabulary"):
        copy("🜚")
    tokenizer.save_assets(tmp_path)
    copy.load_assets(tmp_path)
    assert copy.get_vocabulary() == tokenizer.get_vocabulary()
    np.testing.assert_array_equal(copy("🜚"), tokenizer("🜚"))


@pytest.mark.parametrize("index", [-1, 7])
def test_ids_out_of_range(index):
    with pytest.raises(tf.errors.InvalidArgumentError, match="not in"):
        CharacterTokenizer(CHARACTERS).detokenize([0, index])


def test_learned_characters_are_sorted():
    learnt = CharacterTokenizer.learn(iter(["né\n", "an 🜚"])).get_vocabulary()
    assert learnt == ["\n", " ", "a", "n", "é", "🜚"]


def test_rare_characters_become_the_unknown_one():
    tokenizer = CharacterTokenizer.learn(["a a b c", " d d d"], minimum_count=2)
    assert tokenizer.get_vocabulary() == [" ", "a", "d", "\ufffd"]
    assert tokenizer("b") == [3]


def test_nested_lists(tokenizer):
    texts = [["na", "n"], ["a", "é"]]
    assert tokenizer.detokenize(tokenizer(texts)) == texts


@pytest.mark.parametrize(
    "arguments, match",
    [
        ({"vocabulary": ["ab", "c"]}, "one character.*Received: 'ab'"),
        ({"vocabulary": [1, 2]}, "one character.*Received: 1"),
        ({"vocabulary": {"a": 1}}, "list.*Received.*dict"),
        ({"vocabulary": "ab"}, "list.*Received.*str"),
        ({"vocabulary": ["a", "a"]}, "different.*Received"),
        ({"lowercase": "no"}, "lowercase.*Received"),
        ({"dtype": "float32"}, "dtype.*Received"),
    ],
)
def test_bad_arguments_raise(arguments, match):
    with pytest.raises(ValueError, match=match):
        CharacterTokenizer(**arguments)
