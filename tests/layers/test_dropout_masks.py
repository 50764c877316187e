"""Cells with dropout draw their masks once a solve, with the documented shapes."""

import numpy as np
import pytest
from keras import tree

from deq_keras import layers

HALF = {"dropout_rate": 0.5, "seed": 1}
TEXTS, IMAGES = (4, 6, 5), (3, 8, 4, 8)


@pytest.mark.parametrize(
    "cell, inputs_shape, drawn_shapes",
    [
        (
            layers.TransformerCell(8, 2, 16, attention_dropout_rate=0.5, **HALF),
            TEXTS,
            # Attention drops weights and positions; all positions share the others.
            [(4, 2, 6, 6), (2, 4, 7), (4, 1, 8), (4, 1, 8), (4, 1, 16)],
        ),
        (
            layers.TrellisCell(8, weight_dropout_rate=0.5, **HALF),
            TEXTS,
            # The kernel loses weights, which changes the projected inputs.
            [(4, 6, 32), (2, 8, 32), (4, 1, 8)],
        ),
        (
            layers.MultiscaleCell((8, 16), expansion=1, **HALF),
            IMAGES,
            [(3, 1, 1, 8), (3, 1, 1, 16)],
        ),
        (layers.ResidualBlockCell(8, expansion=1, **HALF), IMAGES, [(3, 1, 1, 8)]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_masks_are_fixed_in_a_solve_and_new_in_the_next(
    cell, inputs_shape, drawn_shapes
):
    inputs = np.random.default_rng(0).normal(size=inputs_shape).astype("float32")

    def injection(training):
        return tree.flatten(cell.inject(inputs, training=training))

    for one, two in zip(injection(False), injection(False), strict=True):
        np.testing.assert_array_equal(one, two)
    drawn = [
        tuple(one.shape)
        for one, two in zip(injection(True), injection(True), strict=True)
        if np.any(one != two)
    ]
    assert drawn == drawn_shapes
    first, second = (cell.inject(inputs, training=True) for _ in range(2))
    state = tree.map_structure(lambda leaf: leaf + 1.0, cell.initial_state(first))
    value, again, other = (
        np.concatenate([np.ravel(leaf) for leaf in tree.flatten(cell(state, one))])
        for one in (first, first, second)
    )
    np.testing.assert_array_equal(value, again)
    assert np.any(value != other)
