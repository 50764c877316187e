import keras
import numpy as np
import pytest
import tensorflow as tf

from training.data.text import segments
from training.errors import InputError


def reference_batches(ids, batch_size, length):
    """`LMOrderedIterator` of Transformer-XL by its description, time first."""
    num_steps = len(ids) // batch_size
    data = np.asarray(ids)[: num_steps * batch_size].reshape(batch_size, -1).T
    for start in range(0, num_steps - 1, length):
        size = min(length, num_steps - 1 - start)
        yield data[start : start + size], data[start + 1 : start + 1 + size]


def arrays(dataset):
    return [(inputs.numpy(), targets.numpy()) for inputs, targets in dataset]


# Streams of 34 or 25 tokens: with and without a shorter last segment.
CASES = [(103, 3, 5), (103, 3, 11), (103, 3, 50), (103, 4, 8), (103, 1, 1), (6, 3, 4)]


@pytest.mark.parametrize(("count", "batch_size", "length"), CASES)
def test_as_in_the_reference(count, batch_size, length):
    ids = np.random.default_rng(0).integers(0, 50, count)
    dataset = segments(ids, batch_size, length)
    expected = list(reference_batches(ids, batch_size, length))
    received = arrays(dataset)
    assert len(received) == len(expected) == int(dataset.cardinality())
    for ours, theirs in zip(received, expected, strict=True):
        for array, transposed in zip(ours, theirs, strict=True):
            assert array.dtype == np.int32
            np.testing.assert_array_equal(array, transposed.T)


@pytest.mark.parametrize(("count", "batch_size", "length"), CASES)
def test_streams_are_the_text(count, batch_size, length):
    ids = np.arange(count)
    inputs, targets = zip(*arrays(segments(ids, batch_size, length)), strict=True)
    inputs, targets = np.concatenate(inputs, 1), np.concatenate(targets, 1)
    size = count // batch_size
    for stream in range(batch_size):
        text = ids[stream * size : (stream + 1) * size]
        np.testing.assert_array_equal(inputs[stream], text[:-1])
        np.testing.assert_array_equal(targets[stream], text[1:])


def test_remainder():
    # Three streams of 34 tokens make 33 targets: 3 times 10, and 3.
    kept, dropped = (segments(np.arange(103), 3, 10, drop) for drop in (False, True))
    assert [x.shape[1] for x, _ in arrays(kept)] == [10, 10, 10, 3]
    assert [x.shape[1] for x, _ in arrays(dropped)] == [10, 10, 10]
    assert (int(kept.cardinality()), int(dropped.cardinality())) == (4, 3)
    assert kept.element_spec[0].shape.as_list() == [3, None]
    assert dropped.element_spec[0].shape.as_list() == [3, 10]
    for ours, theirs in zip(arrays(dropped), arrays(kept), strict=False):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("drop_remainder", [False, True])
def test_no_remainder_gives_a_static_length(drop_remainder):
    dataset = segments(np.arange(103), 3, 11, drop_remainder)
    assert [spec.shape.as_list() for spec in dataset.element_spec] == [[3, 11], [3, 11]]
    assert int(dataset.cardinality()) == 3


def test_every_epoch_starts_at_the_beginning():
    dataset = segments(np.arange(103), 3, 10)
    next(iter(dataset))
    first, second = arrays(dataset), arrays(dataset)
    for ours, theirs in zip(first, second, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert first[0][0][:, 0].tolist() == [0, 34, 68]


def test_replicas_have_streams_of_their_own():
    """A replica's part of the batches is what it would make of its part of the text."""
    ids, replicas, batch_size = np.arange(120), 2, 4
    whole = arrays(segments(ids, batch_size, 7))
    for replica in range(replicas):
        rows = slice(2 * replica, 2 * replica + 2)
        own = arrays(segments(ids[60 * replica : 60 * (replica + 1)], 2, 7))
        for (inputs, targets), expected in zip(whole, own, strict=True):
            np.testing.assert_array_equal((inputs[rows], targets[rows]), expected)


def test_a_strategy_keeps_the_order():
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    dataset = segments(np.arange(103), 3, 10)
    distributed = arrays(strategy.experimental_distribute_dataset(dataset))
    for ours, theirs in zip(distributed, arrays(dataset), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_keras_reads_all_segments_in_order():
    seen = []

    class Recorder(keras.Model):
        def call(self, inputs):
            tf.py_function(lambda x: seen.append(x.numpy()), [inputs], [])
            return keras.ops.cast(inputs, "float32")

    model = Recorder()
    model.compile(loss="mse")
    dataset = segments(np.arange(103), 3, 10)
    model.evaluate(dataset, verbose=0)
    for ours, (theirs, _) in zip(seen[-4:], arrays(dataset), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((np.arange(5), 3, 4), "5 tokens .* 3 streams of at least 2 .* need 6"),
        (([], 3, 4), "A text of 0 tokens"),
        ((np.arange(14), 3, 4, True), "at least 5 tokens, which need 15"),
        ((np.arange(9), 0, 4), "batch_size=0"),
        ((np.arange(9), 3, -1), "length=-1"),
        ((np.arange(9.0), 3, 4), "dtype=float64"),
        ((np.ones((3, 3), int), 3, 4), r"shape=\(3, 3\)"),
    ],
)
def test_refuses(arguments, words):
    with pytest.raises(InputError, match=words):
        segments(*arguments)
