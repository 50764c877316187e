"""Streams of segments are the text, in order, in each epoch."""

import numpy as np
import pytest

from training.data.text import segments
from training.errors import InputError


def arrays(dataset):
    return [(inputs.numpy(), targets.numpy()) for inputs, targets in dataset]


# Streams of 34 or 25 tokens: with and without a shorter last segment.
CASES = [(103, 3, 5), (103, 3, 11), (103, 3, 50), (103, 1, 1), (6, 3, 4)]


@pytest.mark.parametrize(("count", "batch_size", "length"), CASES)
def test_streams_are_the_text(count, batch_size, length):
    ids, size = np.arange(count), count // batch_size
    segmented = arrays(segments(ids, batch_size, length))
    lengths = [inputs.shape[1] for inputs, _ in segmented]
    assert lengths == [min(length, size - 1 - t) for t in range(0, size - 1, length)]
    inputs, targets = (np.concatenate(part, 1) for part in zip(*segmented, strict=True))
    assert inputs.dtype == targets.dtype == np.int32
    streams = ids[: batch_size * size].reshape(batch_size, size)
    np.testing.assert_array_equal(inputs, streams[:, :-1])
    np.testing.assert_array_equal(targets, streams[:, 1:])


def test_remainder():
    # Three streams of 34 tokens make 33 targets: 3 times 10, and 3.
    kept, dropped = (segments(np.arange(103), 3, 10, drop) for drop in (False, True))
    assert [x.shape[1] for x, _ in arrays(kept)] == [10, 10, 10, 3]
    assert [x.shape[1] for x, _ in arrays(dropped)] == [10, 10, 10]
    assert (int(kept.cardinality()), int(dropped.cardinality())) == (4, 3)
    assert kept.element_spec[0].shape.as_list() == [3, None]
    assert dropped.element_spec[0].shape.as_list() == [3, 10]
    np.testing.assert_equal(arrays(dropped), arrays(kept)[:3])


def test_epochs_start_at_the_beginning():
    dataset = segments(np.arange(103), 3, 10)
    next(iter(dataset))
    first = arrays(dataset)
    np.testing.assert_equal(arrays(dataset), first)
    assert first[0][0][:, 0].tolist() == [0, 34, 68]


@pytest.mark.parametrize(
    ("arguments", "tokens"),
    [((np.arange(5), 3, 4), 6), (([], 3, 4), 6), ((np.arange(14), 3, 4, True), 15)],
)
def test_short_text_raises(arguments, tokens):
    with pytest.raises(InputError, match=f"which need {tokens}"):
        segments(*arguments)
