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


def _checksum(feature_map):
    array = np.transpose(feature_map, (0, 3, 1, 2))
    return np.sum(array * fill(array.shape, 7, 1.0))


def _entries(feature_map):
    """[0, 3, 2, 5] and [1, 20, 9, 7] in the reference's layout."""
    array = np.asarray(feature_map)
    return array[0, 2, 5, 3], array[1, 9, 7, 20]


@pytest.fixture(scope="module")
def model():
    return locuslab.load_mdeq(
        _state_dict(),
        solver=solvers.FixedPointIteration(max_iter=3, tol=None),
        gradient=gradients.UnrolledGradient(),
        regularizer=None,
        dtype="float64",
    )


@pytest.fixture(scope="module")
def stem(model):
    return model.backbone.stem(_map(3, 32, 0, 1.0)).numpy()


def test_stem(stem):
    np.testing.assert_allclose(stem.sum(), 4326.6858820896, atol=1e-9)
    np.testing.assert_allclose(np.sum(stem**2), 1258.0169576476, atol=1e-9)
    expected = [0.0512764223, 0.0346388293, 0]
    np.testing.assert_allclose(stem[0, 0, :3, 0], expected, atol=1e-10)


def test_three_evaluations(model, stem):
    cell = model.backbone.deq.cell
    injection = cell.inject(stem)
    state = cell.initial_state(injection)
    expected = [
        [(246.15193049, -1.37180812, -1.01205482), (-21.29174149, 0.64222784)],
        [(-117.72541946, -1.35653274, 1.21096573), (-19.55121029, 0.20289105)],
        [(118.37459507, -0.47876986, 0.42032039), (-62.54224425, 0.79639017)],
    ]
    last = [0.39794518, 0.99066131, 0.40059866]
    for (finest, coarsest), entry in zip(expected, last, strict=True):
        state = cell(state, injection)
        found = _checksum(state[0]), *_entries(state[0])
        np.testing.assert_allclose(found, finest, rtol=1e-8, atol=1e-7)
        found = _checksum(state[1]), *_entries(state[1])
        np.testing.assert_allclose(found, (*coarsest, entry), rtol=1e-8, atol=1e-7)


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
