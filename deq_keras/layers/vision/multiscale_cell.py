"""The cell of multiscale deep equilibrium models."""

import itertools
import random
from typing import Any

import keras
from keras import ops

from deq_keras.core.checks import (
    check_boolean,
    check_count,
    check_counts,
    check_positive,
    check_rate,
    check_seed,
)
from deq_keras.core.serialization import Config, arguments_of
from deq_keras.layers.equilibrium import EquilibriumCell
from deq_keras.layers.vision.multiscale_fusion import MultiscaleFusion, check_groups
from deq_keras.layers.vision.residual_block_cell import ResidualBlockCell
from deq_keras.layers.vision.symmetric_conv import check_sides


@keras.saving.register_keras_serializable(package="deq_keras")
class MultiscaleCell(EquilibriumCell):
    """The cell of multiscale deep equilibrium models (MDEQ).

    The state is a list of feature maps, each with half the height and width of the
    previous one. An evaluation applies a residual block to every map (see
    `ResidualBlockCell`) and then mixes all maps (see `MultiscaleFusion`):

    ```
    r_i       = block_i(z_i, x)         x is injected at the finest scale only
    f(z, x)_i = fusion(r)_i
    ```

    (Bai, Koltun and Kolter, 2020, section 3.2.)

    Args:
        filters: Tuple of positive integers, multiples of `groups`. Number of channels
            of each scale, the finest first.
        expansion: Positive float. Ratio of a block's hidden channels to the channels of
            its scale. Defaults to `5`, as in the reference, the authors' PyTorch code
            (locuslab/mdeq).
        groups: Positive even integer. Number of groups of the norms. The last norms
            have half as many. Defaults to `4`, as in the reference, whose published
            configurations use 8.
        kernel_size: Positive odd integer, or a list with one entry per scale, an
            integer or a pair. Kernel sizes of the blocks. Defaults to `3`.
        num_blocks: Positive integer, or a list with one per scale. Number of
            consecutive blocks at a scale, the first of which has the injection.
            Defaults to `1`.
        dropout_rate: Float in `[0, 1)`. Rate at which the blocks drop channels, for all
            positions and all evaluations of a solve. Defaults to `0.0`.
        weight_normalization: Boolean. Whether the convolutions of the blocks and the
            last convolutions of the fusion are weight normalized. Defaults to `True`.
        block_affine: Boolean. Whether the norms of the blocks have scale and offset.
            Defaults to `True`.
        fuse_affine: Boolean. Whether the norms of the paths between scales have scale
            and offset. Defaults to `True`.
        post_affine: Boolean. Whether the last norms have scale and offset. Defaults to
            `True`.
        seed: Integer. Seed of the blocks. Defaults to `None`, a random seed.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        state: List of tensors, one per scale,
            `(batch, height / 2**i, width / 2**i, filters[i])`.
        injection: Dict. Result of `inject` for this solve.

    Input shape:
        `(batch, height, width, channels)`, for `inject`, with height and width
        divisible by `2**(len(filters) - 1)`.

    Output shape:
        Same as the state.

    Raises:
        ValueError: If an argument is out of range, or the scales do not divide the
            inputs.

    Example:

    >>> cell = MultiscaleCell(filters=(8, 16), expansion=2)
    >>> maps = deq_keras.layers.DEQ(cell)(keras.random.normal((2, 8, 8, 8)))
    >>> [tuple(feature_map.shape) for feature_map in maps]
    [(2, 8, 8, 8), (2, 4, 4, 16)]

    Reference:
        [Bai, Koltun and Kolter, 2020](https://arxiv.org/abs/2006.08656).
    """

    def __init__(
        self,
        filters: tuple[int, ...],
        expansion: float = 5,
        groups: int = 4,
        kernel_size: int | list[Any] = 3,
        num_blocks: int | list[int] = 1,
        dropout_rate: float = 0.0,
        weight_normalization: bool = True,
        block_affine: bool = True,
        fuse_affine: bool = True,
        post_affine: bool = True,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.filters = check_counts("filters", filters)
        self.expansion = check_positive("expansion", expansion)
        self.groups = check_groups(groups)
        self.kernel_size = self._by_scale(check_sides, "kernel_size", kernel_size)
        self.num_blocks = self._by_scale(check_count, "num_blocks", num_blocks)
        self.dropout_rate = check_rate("dropout_rate", dropout_rate)
        self.weight_normalization = check_boolean(
            "weight_normalization", weight_normalization
        )
        self.block_affine = check_boolean("block_affine", block_affine)
        self.fuse_affine = check_boolean("fuse_affine", fuse_affine)
        self.post_affine = check_boolean("post_affine", post_affine)
        self.seed = check_seed("seed", seed)
        kernel_sizes = self._for_each_scale(self.kernel_size)
        # Draws a different seed for each block.
        seeds = random.Random(self.seed)
        # Uses one list: Keras saves layers in nested lists only since 3.15.
        self.blocks = [
            ResidualBlockCell(
                self.filters[scale],
                expansion=self.expansion,
                groups=self.groups,
                kernel_size=kernel_sizes[scale],
                dropout_rate=self.dropout_rate,
                weight_normalization=self.weight_normalization,
                affine=self.block_affine,
                seed=None if self.seed is None else seeds.randrange(2**30),
                name=f"block_{scale}_{index}",
                dtype=self.dtype_policy,
            )
            for scale, num_blocks in enumerate(self._for_each_scale(self.num_blocks))
            for index in range(num_blocks)
        ]
        self.fusion = MultiscaleFusion(
            self.filters,
            groups=self.groups,
            weight_normalization=self.weight_normalization,
            fuse_affine=self.fuse_affine,
            post_affine=self.post_affine,
            name="fusion",
            dtype=self.dtype_policy,
        )

    def _by_scale(self, check: Any, name: str, value: Any) -> Any:
        """Checks an argument that is a single value or a list with one per scale."""
        if not isinstance(value, (list, tuple)):
            return check(name, value)
        if len(value) != self.num_scales:
            raise ValueError(
                f"`{name}` must have one entry for each of the {self.num_scales} "
                f"scales. Received: {name}={value!r}."
            )
        return [check(f"{name}[{scale}]", one) for scale, one in enumerate(value)]

    def _for_each_scale(self, value: Any) -> Any:
        return value if isinstance(value, list) else [value] * self.num_scales

    @property
    def num_scales(self) -> int:
        """Returns the number of feature maps of the state."""
        return len(self.filters)

    @property
    def branches(self) -> Any:
        """Returns the blocks of each scale."""
        blocks = iter(self.blocks)
        return [
            list(itertools.islice(blocks, number))
            for number in self._for_each_scale(self.num_blocks)
        ]

    def build(self, input_shape: Any) -> None:
        batch, height, width, _ = self._check_input(input_shape)
        self.branches[0][0].build(input_shape)
        shapes = []
        for scale, blocks in enumerate(self.branches):
            sizes = [size and size // 2**scale for size in (height, width)]
            shapes.append((batch, *sizes, self.filters[scale]))
            for block in blocks:
                if not block.built:
                    block.build(shapes[-1])
        self.fusion.build(shapes)

    def _check_input(self, shape: Any) -> Any:
        step = 2 ** (self.num_scales - 1)
        is_divisible = len(shape) == 4 and not any(
            size and size % step for size in shape[1:3]
        )
        if not is_divisible:
            raise ValueError(
                f"Cell '{self.name}' of {self.num_scales} scales expects inputs of "
                "shape (batch, height, width, channels), with height and width "
                f"divisible by {step}. Received: inputs of shape {tuple(shape)}. "
                "Resize or pad the images."
            )
        return shape

    def inject(self, inputs: Any, training: bool = False) -> dict[str, Any]:
        """Projects the inputs, and fixes kernels and dropout masks for a solve.

        Args:
            inputs: Tensor of shape `(batch, height, width, channels)`.
            training: Boolean. Whether to sample dropout masks.

        Returns:
            Dict of `"blocks"`, a list per scale of the constants of its blocks (the
            very first also has the inputs), and `"fusion"`, the kernels of the fusion.
        """
        self._check_input(tuple(inputs.shape))
        if not self.built:
            self.build(tuple(inputs.shape))
        batch_size = ops.shape(inputs)[0]
        blocks = [
            [block.constants(batch_size, training) for block in branch]
            for branch in self.branches
        ]
        blocks[0][0] = self.branches[0][0].inject(inputs, training)
        injection = {"blocks": blocks}
        if self.weight_normalization:
            injection["fusion"] = self.fusion.kernels()
        return injection

    def initial_state(self, injection: Any) -> list[Any]:
        """Returns a state of zeros."""
        finest = injection["blocks"][0][0]["inputs"]
        batch, height, width, _ = ops.shape(finest)
        return [
            ops.zeros(
                (batch, height // 2**scale, width // 2**scale, filters), finest.dtype
            )
            for scale, filters in enumerate(self.filters)
        ]

    def call(self, state: Any, injection: Any) -> Any:
        maps = []
        for feature_map, branch, constants in zip(
            state, self.branches, injection["blocks"]
        ):
            for block, constant in zip(branch, constants):
                feature_map = block(feature_map, constant)
            maps.append(feature_map)
        return self.fusion(maps, kernels=injection.get("fusion"))

    def get_config(self) -> Config:
        return {**super().get_config(), **arguments_of(self, MultiscaleCell)}
