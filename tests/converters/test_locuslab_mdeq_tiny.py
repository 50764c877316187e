"""The published TINY model with made-up weights, against numbers of the reference.

Weights, images and states are `arrays.fill`, so nothing but the results is stored.
"""

import numpy as np
import pytest

from deq_keras import gradients, solvers
from deq_keras.converters import locuslab
from tests.golden.arrays import fill


def _normalization(name, size, affine=True):
    affine = {"weight": (size,), "bias": (size,)} if affine else {}
    statistics = {"running_mean": (size,), "running_var": (size,)}
    shapes = {**affine, **statistics, "num_batches_tracked": ()}
    return {f"{name}.{part}": shape for part, shape in shapes.items()}


def _weight_normalized(name, shape):
    return {f"{name}.weight_g": (shape[0], 1, 1, 1), f"{name}.weight_v": shape}


def _group_norm(name, size):
    return {f"{name}.weight": (size,), f"{name}.bias": (size,)}


def _bottleneck(name, size):
    shapes = {}
    for index, shape in enumerate(
        [(size, 24, 1, 1), (size, size, 3, 3), (4 * size, size, 1, 1)], start=1
    ):
        shapes[f"{name}.conv{index}.weight"] = shape
        shapes |= _normalization(f"{name}.bn{index}", shape[0], affine=False)
    shapes[f"{name}.downsample.0.weight"] = (4 * size, 24, 1, 1)
    return shapes | _normalization(f"{name}.downsample.1", 4 * size)


def _shapes():
    """The entries of the reference's state dict, in its order."""
    shapes = {"downsample.0.weight": (24, 3, 3, 3)}
    shapes |= _normalization("downsample.1", 24)
    shapes["downsample.3.weight"] = (24, 24, 3, 3)
    shapes |= _normalization("downsample.4", 24)
    for branch in range(2):
        name = f"fullstage.branches.{branch}.blocks.0"
        shapes |= _weight_normalized(f"{name}.conv1", (120, 24, 3, 3))
        shapes |= _group_norm(f"{name}.gn1", 120)
        shapes |= _weight_normalized(f"{name}.conv2", (24, 120, 3, 3))
        shapes |= _group_norm(f"{name}.gn2", 24) | _group_norm(f"{name}.gn3", 24)
    for path, size in (("0.1.net", 1), ("1.0.net.0", 3)):
        name = f"fullstage.fuse_layers.{path}"
        shapes[f"{name}.conv.weight"] = (24, 24, size, size)
        shapes |= _group_norm(f"{name}.gnorm", 24)
    for branch in range(2):
        name = f"fullstage.post_fuse_layers.{branch}.conv"
        shapes |= _weight_normalized(name, (24, 24, 1, 1))
    shapes |= _bottleneck("incre_modules.0.0", 8) | _bottleneck("incre_modules.1.0", 16)
    shapes["downsamp_modules.0.0.weight"] = (64, 32, 3, 3)
    shapes["downsamp_modules.0.0.bias"] = (64,)
    shapes |= _normalization("downsamp_modules.0.1", 64)
    shapes["final_layer.0.weight"] = (200, 64, 1, 1)
    shapes["final_layer.0.bias"] = (200,)
    shapes |= _normalization("final_layer.1", 200)
    return shapes | {"classifier.weight": (10, 200), "classifier.bias": (10,)}


def _state_dict():
    state_dict = {}
    for k, (name, shape) in enumerate(_shapes().items()):
        is_scale = len(shape) == 1 and name.endswith(".weight")
        is_near_one = is_scale or name.endswith(("weight_g", "running_var"))
        state_dict[name] = fill(shape, k, 0.1) + is_near_one
    return state_dict


def _map(channels, size, k, scale):
    """A filled map in Keras' layout."""
    return fill((2, channels, size, size), k, scale).transpose(0, 2, 3, 1)


@pytest.fixture(scope="module")
def model():
    return locuslab.load_mdeq(
        _state_dict(),
        solver=solvers.FixedPointIteration(max_iter=3, tol=None),
        gradient=gradients.UnrolledGradient(),
        regularizer=None,
        dtype="float64",
    )


def test_logits_after_three_evaluations(model):
    logits = model(_map(3, 32, 0, 1.0))
    expected = [
        [0.5139686521, 0.1373074335, 0.0270774437, 0.1042759375, -0.1562925429]
        + [0.1434940544, -0.2219273047, 0.2463668752, 0.0823576913, -0.0484339602],
        [0.5170573338, 0.1360351414, 0.0255261323, 0.0863264439, -0.1549129876]
        + [0.1323889812, -0.2101453094, 0.2386726053, 0.0748175647, -0.0434590257],
    ]
    # The images go through the float32 input of a functional model.
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-6)
