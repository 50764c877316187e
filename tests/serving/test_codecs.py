"""Encoded images in, names of classes out, within the graph."""

import io

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from deq_keras import layers, models, serving, tokenizers
from tests.layers.cells import TanhCell

PIXELS = np.random.RandomState(0).randint(0, 255, (2, 6, 4, 3)).astype("uint8")
FILES = np.array(
    [
        tf.io.encode_png(PIXELS[0]).numpy(),
        tf.io.encode_png(PIXELS[1][:3]).numpy()[:-20],
        tf.io.encode_jpeg(PIXELS[1]).numpy(),
    ],
    dtype=object,
)


def test_images_of_all_sizes_and_one_that_is_damaged(exact_regime):
    images = exact_regime(serving.EncodedImages((6, 4)))(tf.constant(FILES)).numpy()
    np.testing.assert_array_equal(images[0], PIXELS[0])
    assert np.isnan(images[1]).all() and np.isfinite(images[2]).all()


def _saved(image, form, **keywords):
    stream = io.BytesIO()
    image.save(stream, form, **keywords)
    return stream.getvalue()


def test_formats_that_are_not_decoded_become_nan(exact_regime):
    image = Image.fromarray(PIXELS[0])
    files = [
        _saved(image, "BMP"),
        _saved(image.quantize(9), "BMP"),
        _saved(image.convert("L"), "BMP"),
        _saved(image.convert("1"), "BMP"),
        _saved(image, "GIF"),
        _saved(image, "WEBP"),
        _saved(image, "WEBP", save_all=True, append_images=[image.rotate(180)]),
        b"",
    ]
    images = exact_regime(serving.EncodedImages((6, 4)))(tf.constant(files)).numpy()
    np.testing.assert_array_equal(images[0], PIXELS[0])
    assert np.isnan(images[1:]).all()


def test_what_is_refused():
    with pytest.raises(ValueError, match=r"`size` must be \(height, width\)"):
        serving.EncodedImages((3,))
    with pytest.raises(ValueError, match="`channels` must be one of"):
        serving.EncodedImages((3, 3), channels=2)
    with pytest.raises(ValueError, match="`names` must be strings"):
        serving.ClassNames([1, 2])
    with pytest.raises(ValueError, match=r"Expected outputs of shape \(batch, 2\)"):
        serving.ClassNames(["a", "b"])(tf.zeros((3, 4)))


@pytest.mark.slow
def test_one_bad_item_does_not_fail_a_request(tmp_path):
    deq = layers.DEQ(TanhCell(5), "fixed_point_iteration")
    model = keras.Sequential(
        [keras.Input((6, 4, 3)), keras.layers.Flatten(), deq, keras.layers.Dense(2)]
    )
    serving.export_saved_model(
        model,
        tmp_path / "model",
        samples=FILES,
        preprocessor=serving.EncodedImages((6, 4)),
        postprocessor=serving.ClassNames(["cat", "dog"]),
    )
    ask = serving.load(tmp_path / "model")
    names = ask({"inputs": FILES})["outputs"].tolist()
    assert names[1] == b"" and {names[0], names[2]} <= {b"cat", b"dog"}
    budget = {"max_iter": np.array(0), "tol": np.array(-1, "float32")}
    assert ask({"inputs": FILES, **budget})["status"].tolist() == [0, 2, 0]


WORDS = ["<unk>", "to", "be", "or", "not"]


@pytest.mark.slow
def test_texts_in_and_tokens_out(tmp_path):
    tokenizer = tokenizers.WordTokenizer(WORDS)
    backbone = models.DEQTransformerBackbone(
        5, 16, num_heads=2, intermediate_dim=32, solver="fixed_point_iteration"
    )
    model = models.DEQTransformerCausalLM(backbone)
    texts = np.array([b"to be or", b"", b"never to be"], dtype=object)
    serving.export_saved_model(
        model,
        tmp_path / "model",
        samples=texts,
        preprocessor=serving.Prompts(tokenizer, 5),
        postprocessor=serving.NextTokens(tokenizer),
    )
    tokens = serving.load(tmp_path / "model")({"inputs": texts})["outputs"]
    for ids, token in (([1, 2, 3], tokens[0]), ([0, 1, 2], tokens[2])):
        expected = WORDS[int(np.argmax(model(np.array([ids]))[0, -1]))]
        assert token.decode() == expected
    assert tokens[1] == b""


@pytest.mark.slow
def test_a_tokenizer_that_fails_whole_requests_is_refused(tmp_path):
    tokenizer = tokenizers.WordTokenizer(WORDS[1:])
    backbone = models.DEQTransformerBackbone(4, 16, num_heads=2, intermediate_dim=32)
    with pytest.raises(serving.ExportError, match="must have each token of the text"):
        serving.export_saved_model(
            models.DEQTransformerCausalLM(backbone),
            tmp_path / "model",
            samples=np.array([b"to be"], dtype=object),
            preprocessor=serving.Prompts(tokenizer, 5),
        )
