import json
import sys

import keras
import keras_hub
import numpy as np
import pytest
import tensorflow as tf

from deq_keras.tokenizers import CharacterTokenizer, SubwordTokenizer, WordTokenizer

WORDS = ["<eos>", "to", "be", "naïve", "🜚", "<unk>"]
CHARACTERS = ["\n", " ", "a", "n", "é", "🜚", "\ufffd"]


@pytest.fixture(
    params=[
        WordTokenizer(WORDS),
        CharacterTokenizer(CHARACTERS),
        SubwordTokenizer.learn(["naïve 🜚\n"] * 20, 20),
    ],
    ids=["word", "character", "subword"],
)
def tokenizer(request):
    return request.param


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


def test_white_space_is_that_of_python():
    codes = [i for i in range(sys.maxunicode + 1) if not 0xD800 <= i < 0xE000]
    text = "".join(f"x{chr(code)}" for code in codes).replace("\n", " ")
    vocabulary = sorted(set(text.split()))
    ids = WordTokenizer(vocabulary)(text)
    assert [vocabulary[index] for index in np.array(ids)] == text.split()


@pytest.mark.parametrize("text", ["to be\n\n\nnaïve 🜚\n", "to\nbe", "\nto", "<unk>"])
def test_words_survive_a_round_trip(text):
    tokenizer = WordTokenizer(WORDS)
    assert tokenizer.detokenize(tokenizer(text)) == text


def test_a_word_that_contains_the_end_of_line_is_a_word():
    tokenizer = WordTokenizer(["<eos>", "a<eos>b", "c"])
    assert tokenizer.detokenize([2, 1, 0, 2]) == "c a<eos>b\nc"


def test_characters_survive_a_round_trip():
    tokenizer = CharacterTokenizer(CHARACTERS)
    ids = tokenizer("🜚na\né")
    np.testing.assert_array_equal(ids, [5, 3, 2, 0, 4])
    assert tokenizer.detokenize(ids) == "🜚na\né"


def test_unknown_characters_become_the_replacement_character():
    tokenizer = CharacterTokenizer(CHARACTERS)
    assert tokenizer.detokenize(tokenizer("aßa")) == "a\ufffda"


@pytest.mark.parametrize(
    "tokenizer, text, unknown",
    [
        (WordTokenizer(["<eos>", "to"]), "to zebra", "zebra"),
        (CharacterTokenizer(["a"]), "aß", "ß"),
    ],
)
def test_unknown_without_a_token_for_it(tokenizer, text, unknown):
    with pytest.raises(ValueError, match=f"must have each token.*{unknown!r}"):
        tokenizer(text)
    with pytest.raises(ValueError, match="must have each token"):
        tokenizer.token_to_id(unknown)
    dataset = tf.data.Dataset.from_tensors(text).map(tokenizer)
    with pytest.raises(tf.errors.InvalidArgumentError, match="must have each token"):
        next(iter(dataset))


@pytest.mark.parametrize("text", ["ÀÉ", "ΑΣ ΣΑ", "İI", "ẞ"])
def test_lower_case_is_that_of_python(text):
    vocabulary = ["<eos>", *text.lower().split()]
    ids = WordTokenizer(vocabulary, lowercase=True)(text)
    assert [vocabulary[i] for i in np.array(ids)] == text.lower().split()


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
    with pytest.raises(ValueError, match=f"(id=|Received: ){len(tokens)}"):
        tokenizer.id_to_token(len(tokens))


def test_the_vocabulary_is_an_asset(tokenizer, tmp_path):
    config = keras.saving.serialize_keras_object(tokenizer)
    assert "naïve" not in json.dumps(config, ensure_ascii=False)
    copy = keras.saving.deserialize_keras_object(config)
    assert isinstance(copy, keras_hub.tokenizers.Tokenizer)
    with pytest.raises(ValueError, match="(?i)no vocabulary (yet|has been set)"):
        copy("🜚")
    tokenizer.save_assets(tmp_path)
    copy.load_assets(tmp_path)
    assert copy.get_vocabulary() == tokenizer.get_vocabulary()
    np.testing.assert_array_equal(copy("🜚"), tokenizer("🜚"))


@pytest.mark.parametrize("vocabulary", [["a", "b", "a"], []])
def test_a_vocabulary_of_other_than_different_tokens(vocabulary):
    with pytest.raises(ValueError, match="list of different tokens. Received: [30] "):
        CharacterTokenizer(vocabulary)


@pytest.mark.parametrize("index", [-1, 7])
def test_ids_out_of_range(index):
    with pytest.raises(tf.errors.InvalidArgumentError, match="not in \\[0, 7\\)"):
        CharacterTokenizer(CHARACTERS).detokenize([0, index])


def test_words_are_learnt_in_the_order_of_their_counts():
    texts = ["b a\n", "c b <eos> A\n"]
    learnt = WordTokenizer.learn(texts).get_vocabulary()
    assert learnt == ["<eos>", "b", "a", "c", "A"]
    lowercase = WordTokenizer.learn(texts, lowercase=True)
    assert lowercase.get_vocabulary() == ["<eos>", "b", "a", "c"]
    assert lowercase("B") == [1]


def test_characters_are_learnt_in_the_order_of_their_code_points():
    learnt = CharacterTokenizer.learn(iter(["né\n", "an 🜚"])).get_vocabulary()
    assert learnt == ["\n", " ", "a", "n", "é", "🜚"]


@pytest.mark.parametrize("cls", [WordTokenizer, CharacterTokenizer])
def test_rare_tokens_are_taken_for_the_unknown_one(cls):
    tokenizer = cls.learn(["a a b c", " d d d"], minimum_count=2)
    rest = tokenizer.get_vocabulary()
    assert {"a", "d", cls.unknown_token} <= set(rest) and "b" not in rest
    assert tokenizer("b") == [tokenizer.token_to_id(cls.unknown_token)]


@pytest.mark.parametrize("count", [0, 1.5, True])
def test_a_count_that_is_none(count):
    with pytest.raises(ValueError, match=f"minimum_count={count}"):
        WordTokenizer.learn(["a"], minimum_count=count)


def test_from_text_keeps_all_characters_of_a_text():
    tokenizer = CharacterTokenizer.from_text("Banana")
    assert tokenizer.get_vocabulary() == ["B", "a", "n"]
    assert tokenizer.detokenize(tokenizer("nanB")) == "nanB"
    assert CharacterTokenizer.from_text("Bb", lowercase=True).vocabulary == ["b"]
    for text in ("", ["banana"], None):
        with pytest.raises(ValueError, match="`text` must be a string.*Received"):
            CharacterTokenizer.from_text(text)
