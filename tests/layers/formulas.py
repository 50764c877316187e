"""Formulas of layers in NumPy, and random weights and inputs."""

import numpy as np


def normal(shape, seed=0):
    """Returns an array of normal numbers."""
    return np.random.default_rng(seed).normal(size=shape)


def randomize(layer, shift=0.0):
    """Replaces trainable weights, of which some are zeros or ones at first."""
    for index, weight in enumerate(layer.trainable_weights):
        weight.assign(normal(weight.shape, seed=10 + index) + shift)


def relu(array):
    return np.maximum(array, 0)


def kernel_of(layer):
    """Returns the kernel of a convolution, with or without weight normalization."""
    if not hasattr(layer, "gain"):
        return layer.kernel.numpy()
    direction = layer.direction.numpy()
    axes = tuple(range(direction.ndim - 1))
    return direction * layer.gain.numpy() / np.sqrt(np.sum(direction**2, axis=axes))


def convolve(inputs, kernel, strides=1):
    """Convolves by explicit sums over a window, zero-padded alike on all sides."""
    *sizes, _, _ = kernel.shape
    sides = [(size // 2, size // 2) for size in sizes]
    padded = np.pad(inputs, [(0, 0), *sides, (0, 0)])
    total = 0.0
    for place in np.ndindex(*sizes):
        window = tuple(
            slice(start, start + size)
            for start, size in zip(place, inputs.shape[1:-1], strict=True)
        )
        total = total + padded[:, *window] @ kernel[place]
    return total[:, *[slice(None, None, strides)] * len(sizes)]


def group_norm(inputs, groups, gamma=1.0, beta=0.0, epsilon=1e-5):
    """Normalizes groups of the last axis."""
    inputs = np.asarray(inputs, "float64")
    grouped = inputs.reshape(inputs.shape[0], -1, groups, inputs.shape[-1] // groups)
    mean = grouped.mean(axis=(1, 3), keepdims=True)
    variance = grouped.var(axis=(1, 3), keepdims=True)
    normalized = (grouped - mean) / np.sqrt(variance + epsilon)
    return normalized.reshape(inputs.shape) * gamma + beta


def normalize(layer, inputs):
    """Returns what a group normalization with its weights computes."""
    weights = (layer.gamma.numpy(), layer.beta.numpy()) if layer.scale else ()
    return group_norm(inputs, layer.groups, *weights)
