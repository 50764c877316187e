"""Fusion of feature maps of several resolutions."""

import itertools
from typing import Any

import keras
from keras import ops

from deq_keras.core.checks import check_boolean, check_count, check_counts
from deq_keras.core.serialization import Config, arguments_of
from deq_keras.layers.kernel_initializer import FAN_IN_UNIFORM, SMALL_NORMAL
from deq_keras.layers.normalization import GroupNormalization, WeightNormalizedConv2D
from deq_keras.layers.normalization.normalized_kernel import apply_kernel
from deq_keras.layers.vision.symmetric_conv import SymmetricConv2D


@keras.saving.register_keras_serializable(package="deq_keras")
class MultiscaleFusion(keras.layers.Layer):
    """Mixes feature maps of several resolutions, each into all others.

    Scale i has half the height and width of scale i - 1. Its new map is

    ```
    y_i = r_i + sum over j != i of path_ij(r_j)
    z_i = norm(conv1x1(relu(y_i)))
    ```

    (Bai, Koltun and Kolter, 2020, section 3.2, "multi-resolution fusion"). A path from
    a coarser scale consists of a 1x1 convolution, a group norm and nearest-neighbor
    upsampling. A path from a finer scale has a 3x3 convolution with stride 2 and a
    group norm for every halving, with ReLU between them. The last convolution is weight
    normalized, and its norm has half as many groups, as in the reference, the authors'
    PyTorch code (locuslab/mdeq).

    Args:
        filters: See `MultiscaleCell`.
        groups: Positive even integer. Number of groups of the norms. Defaults to `4`.
        weight_normalization: Boolean. Whether the last convolutions are weight
            normalized. Defaults to `True`.
        fuse_affine: See `MultiscaleCell`. Defaults to `True`.
        post_affine: See `MultiscaleCell`. Defaults to `True`.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        maps: List of tensors, one per scale.
        kernels: List of tensors. Kernels of the last convolutions, from `kernels()` at
            the start of a solve. Defaults to `None`, which computes them in this call.

    Input shape:
        List of `(batch, height / 2**i, width / 2**i, filters[i])`.

    Output shape:
        Same as the input shape.

    Example:

    >>> layer = MultiscaleFusion((8, 16))
    >>> maps = layer([keras.ops.ones((2, 8, 8, 8)), keras.ops.ones((2, 4, 4, 16))])
    >>> tuple(maps[1].shape)
    (2, 4, 4, 16)

    Reference:
        [Bai, Koltun and Kolter, 2020](https://arxiv.org/abs/2006.08656).
    """

    def __init__(
        self,
        filters: tuple[int, ...],
        groups: int = 4,
        weight_normalization: bool = True,
        fuse_affine: bool = True,
        post_affine: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.filters = check_counts("filters", filters)
        self.groups = check_groups(groups)
        self.weight_normalization = check_boolean(
            "weight_normalization", weight_normalization
        )
        self.fuse_affine = check_boolean("fuse_affine", fuse_affine)
        self.post_affine = check_boolean("post_affine", post_affine)
        scales = range(len(self.filters))
        # Uses one list: Keras saves layers in nested lists only since 3.15.
        self.path_layers = [
            layer
            for source, target in self._sources_and_targets()
            for layer in self._create_path(source, target)
        ]
        plain = keras.layers.Conv2D
        cls = WeightNormalizedConv2D if self.weight_normalization else plain
        self.convolutions = [
            cls(
                self.filters[scale],
                1,
                use_bias=False,
                kernel_initializer=FAN_IN_UNIFORM,
                name=f"convolution_{scale}",
                dtype=self.dtype_policy,
            )
            for scale in scales
        ]
        self.norms = [
            self._norm(f"norm_{scale}", self.groups // 2, self.post_affine)
            for scale in scales
        ]

    def _sources_and_targets(self) -> Any:
        scales = range(len(self.filters))
        return [
            (source, target)
            for target in scales
            for source in scales
            if source != target
        ]

    @property
    def paths(self) -> Any:
        """Returns the (convolution, norm) pairs from one scale to another, by name."""
        pairs = zip(self.path_layers[::2], self.path_layers[1::2])
        return {
            # One pair per halving, and one pair for any number of doublings.
            f"{source}_to_{target}": list(
                itertools.islice(pairs, max(target - source, 1))
            )
            for source, target in self._sources_and_targets()
        }

    def _create_path(self, source: int, target: int) -> Any:
        """Returns alternating convolutions and norms from one scale to another."""
        name = f"{source}_to_{target}"
        if source > target:
            widths, kernel_size, strides = [self.filters[target]], 1, 1
        else:
            widths = [self.filters[source]] * (target - source - 1)
            widths, kernel_size, strides = [*widths, self.filters[target]], 3, 2
        layers = []
        for stage, width in enumerate(widths):
            convolution = SymmetricConv2D(
                width,
                kernel_size,
                strides=strides,
                use_bias=False,
                kernel_initializer=SMALL_NORMAL,
                name=f"{name}_convolution_{stage}",
                dtype=self.dtype_policy,
            )
            norm = self._norm(f"{name}_norm_{stage}", self.groups, self.fuse_affine)
            layers += [convolution, norm]
        return layers

    def _norm(self, name: str, groups: int, affine: bool) -> Any:
        return GroupNormalization(
            groups, center=affine, scale=affine, name=name, dtype=self.dtype_policy
        )

    def build(self, maps_shape: Any) -> None:
        if len(maps_shape) != len(self.filters):
            raise ValueError(
                f"Layer '{self.name}' has `filters` for {len(self.filters)} scales. "
                f"Received: {len(maps_shape)} maps."
            )
        for target, shape in enumerate(maps_shape):
            for source, source_shape in enumerate(maps_shape):
                if source == target:
                    continue
                for convolution, norm in self.paths[f"{source}_to_{target}"]:
                    convolution.build(source_shape)
                    source_shape = convolution.compute_output_shape(source_shape)
                    norm.build(source_shape)
            self.convolutions[target].build(shape)
            self.norms[target].build(shape)

    def kernels(self) -> Any:
        """Computes the kernels of the last convolutions for one solve."""
        if not self.weight_normalization:
            return [None] * len(self.filters)
        return [layer.normalized_kernel() for layer in self.convolutions]

    def call(self, maps: Any, kernels: Any = None) -> Any:
        if kernels is None:
            kernels = self.kernels()
        fused = []
        for target, (convolution, norm, kernel) in enumerate(
            zip(self.convolutions, self.norms, kernels)
        ):
            total = maps[target]
            for source, feature_map in enumerate(maps):
                if source != target:
                    total = total + self._follow(source, target, feature_map)
            fused.append(norm(apply_kernel(convolution, ops.relu(total), kernel)))
        return fused

    def _follow(self, source: int, target: int, feature_map: Any) -> Any:
        path = self.paths[f"{source}_to_{target}"]
        if source > target:
            ((convolution, norm),) = path
            # Upsamples last, so that convolution and norm process the small map.
            times = 2 ** (source - target)
            feature_map = norm(convolution(feature_map))
            return ops.repeat(ops.repeat(feature_map, times, axis=1), times, axis=2)
        for stage, (convolution, norm) in enumerate(path):
            if stage > 0:
                feature_map = ops.relu(feature_map)
            feature_map = norm(convolution(feature_map))
        return feature_map

    def compute_output_shape(self, maps_shape: Any) -> Any:
        return maps_shape

    def get_config(self) -> Config:
        return {**super().get_config(), **arguments_of(self, MultiscaleFusion)}


def check_groups(groups: int) -> int:
    """Returns a positive even integer: the last norms have half as many groups."""
    groups = check_count("groups", groups)
    if groups % 2:
        raise ValueError(
            "`groups` must be a positive even integer, as the last norms have half as "
            f"many groups. Received: groups={groups}."
        )
    return groups
