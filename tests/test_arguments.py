"""Arguments of layers and backbones: numbers of NumPy, wrong kinds and bad values."""

import json

import numpy as np
import pytest

from deq_keras import layers, models
from tests import harness

LANGUAGE = {
    "vocabulary_size": 20,
    "hidden_dim": 8,
    "intermediate_dim": 16,
    "embedding_dim": 6,
    "cutoffs": (5, 10),
    "memory_length": 3,
}
TRANSFORMER = {
    **LANGUAGE,
    "num_heads": 2,
    "div_val": 2,
    "normalize_first": True,
    "local_size": 5,
    "dropout": 0.5,
    "attention_dropout": 0.25,
    "weight_normalization": False,
}
TRELLIS = {
    **LANGUAGE,
    "kernel_size": 3,
    "token_dropout": 0.125,
    "embedding_dropout": 0.25,
    "hidden_dropout": 0.5,
    "output_dropout": 0.125,
    "weight_dropout": 0.25,
    "weight_normalization": False,
}
STACK = {"num_layers": 2, "weight_tied": True, "recompute": True}
BY_CLASS = {
    layers.AdaptiveEmbedding: {
        "vocabulary_size": 20,
        "embedding_dim": 8,
        "output_dim": 4,
        "cutoffs": (5, 10),
        "div_val": 2,
        "scale": 0.5,
        "dropout_rate": 0.25,
        "seed": 3,
    },
    layers.AttentionCell: {"units": 8, "num_heads": 2, "num_blocks": 3, "expansion": 4},
    layers.AutomatonCell: {"filters": 4, "rank": 1, "step": 0.5, "leak": 0.25},
    layers.BoardCell: {"units": 4, "box_shape": (2, 3), "step": 0.5},
    layers.BoardEmbedding: {
        "vocabulary_size": 5,
        "units": 8,
        "board_shape": (4, 6),
        "box_shape": (2, 3),
    },
    layers.BottleneckBlock: {"filters": 4, "momentum": 0.5},
    layers.ConvolutionUnit: {
        "filters": 4,
        "kernel_size": 3,
        "strides": 2,
        "use_bias": True,
        "affine": True,
        "relu": False,
        "momentum": 0.5,
    },
    layers.DenseCell: {
        "units": 4,
        "weight_normalization": True,
        "layer_normalization": True,
        "seed": 3,
    },
    layers.GroupNormalization: {
        "groups": 2,
        "axis": -1,
        "epsilon": 0.5,
        "center": False,
        "scale": True,
    },
    layers.LayerNormalization: {"epsilon": 0.5, "center": False, "scale": True},
    layers.MixerCell: {"units": 8, "num_blocks": 3, "expansion": 4},
    layers.MonotoneConvCell: {"filters": 4, "m": 0.5, "sign": -1},
    layers.MonotoneDenseCell: {"units": 4, "m": 0.5},
    layers.MultiscaleCell: {
        "filters": (4, 8),
        "expansion": 2,
        "groups": 2,
        "kernel_size": [3, (3, 5)],
        "num_blocks": [1, 2],
        "dropout_rate": 0.5,
        "weight_normalization": False,
        "block_affine": True,
        "fuse_affine": False,
        "post_affine": True,
        "seed": 3,
    },
    layers.MultiscaleClassificationHead: {
        "num_classes": 3,
        "filters": (4, 8),
        "final_filters": 4,
    },
    layers.MultiscaleFusion: {
        "filters": (4, 8),
        "groups": 2,
        "weight_normalization": False,
        "fuse_affine": True,
        "post_affine": False,
    },
    layers.MultiscaleSegmentationHead: {
        "num_classes": 3,
        "scale": 2,
        "kernel_size": 3,
        "momentum": 0.5,
    },
    layers.MultiscaleStem: {
        "filters": 4,
        "num_downsamplings": 0,
        "injection_unit": False,
        "momentum": 0.5,
    },
    layers.RecallCell: {"filters": 4, "rank": 1, "activation": "sphere"},
    layers.RelativeAttention: {
        "num_heads": 2,
        "local_size": 3,
        "dropout_rate": 0.5,
        "position_dropout_rate": 0.25,
        "weight_normalization": False,
        "seed": 3,
    },
    layers.ResidualBlockCell: {
        "filters": 4,
        "expansion": 2,
        "groups": 2,
        "kernel_size": (3, 5),
        "dropout_rate": 0.5,
        "weight_normalization": False,
        "affine": True,
        "seed": 3,
    },
    layers.SpectrallyNormalizedDense: {"units": 4, "max_norm": 0.5},
    layers.SymmetricConv2D: {"filters": 4, "kernel_size": (3, 3)},
    layers.TransformerCell: {
        "units": 8,
        "num_heads": 2,
        "intermediate_dim": 16,
        "normalize_first": True,
        "local_size": 3,
        "dropout_rate": 0.5,
        "attention_dropout_rate": 0.25,
        "weight_normalization": False,
        "seed": 3,
    },
    layers.TransformerXLLayer: {
        "units": 8,
        "num_heads": 2,
        "intermediate_dim": 16,
        "normalize_first": True,
        "local_size": 3,
        "dropout_rate": 0.5,
        "attention_dropout_rate": 0.25,
        "weight_normalization": True,
        "seed": 3,
    },
    layers.TrellisCell: {
        "units": 8,
        "output_dim": 4,
        "kernel_size": 3,
        "dilation_rate": 2,
        "cell_shift": 2,
        "dropout_rate": 0.5,
        "weight_dropout_rate": 0.25,
        "weight_normalization": False,
        "seed": 3,
    },
    layers.VariationalDropout: {"rate": 0.5, "noise_shape": (None, 1), "seed": 3},
    layers.WeightNormalizedConv1D: {"filters": 4, "kernel_size": (3,)},
    layers.WeightNormalizedConv2D: {"filters": 4, "kernel_size": (3, 3)},
    layers.WeightNormalizedDense: {"units": 4},
    models.DEQTransformerBackbone: {**TRANSFORMER, "max_iter_jitter": 2},
    models.ExplicitTransformerBackbone: {**TRANSFORMER, **STACK},
    models.TransformerXLBackbone: {**TRANSFORMER, **STACK},
    models.DEQTrellisNetBackbone: {**TRELLIS, "dilation_rate": 2, "cell_shift": 2},
    models.TrellisNetBackbone: {
        **TRELLIS,
        "num_layers": 2,
        "dilations": (1, 2),
        "auxiliary_frequency": 1,
        "recompute": True,
    },
    models.MDEQBackbone: {
        "filters": (8,),
        "expansion": 2.0,
        "groups": 4,
        "num_downsamplings": 1,
        "kernel_size": ((5, 3),),
        "num_blocks": (2,),
        "dropout": 0.5,
        "weight_normalization": False,
        "block_affine": False,
        "fuse_affine": False,
        "post_affine": False,
        "batch_norm_momentum": 0.5,
        "image_shape": (None, 16, 3),
        "max_iter_jitter": 2,
    },
}
NAN = float("nan")
ARGUMENTS = [
    (cls, name)
    for cls, given in BY_CLASS.items()
    for name in given
    if name != "batch_norm_momentum"  # The layers name it `momentum`.
]


def _of_numpy(value):
    if isinstance(value, list | tuple):
        return type(value)(map(_of_numpy, value))
    return None if value is None else np.array(value)[()]


def _name(value):
    return getattr(value, "__name__", str(value))


@pytest.mark.parametrize("cls", BY_CLASS, ids=_name)
def test_configs_are_plain_data_that_restore_the_object(cls):
    """Numbers of NumPy become plain Python."""
    plain, of_numpy = (
        cls(**{name: change(value) for name, value in BY_CLASS[cls].items()}, name="a")
        for change in (lambda value: value, _of_numpy)
    )
    config = of_numpy.get_config()
    assert json.loads(json.dumps(config)) == json.loads(json.dumps(plain.get_config()))
    harness.check_round_trip(of_numpy)


@pytest.mark.parametrize(("cls", "name"), ARGUMENTS, ids=_name)
def test_a_wrong_kind_is_refused_by_name(cls, name):
    """Of flags a number, and of everything else a flag."""
    value = BY_CLASS[cls][name]
    wrong = 1 if isinstance(value, bool) else True
    with pytest.raises(ValueError, match=rf"`{name}`.*Received: {name}={wrong}\."):
        cls(**{**BY_CLASS[cls], name: wrong})


@pytest.mark.parametrize(
    "argument", ["tie_weights", "recompute", "num_layers", "length"]
)
def test_layers_of_other_layers(argument):
    cell = layers.TransformerCell(8, 2, 16)
    wrong = 1 if argument in ("tie_weights", "recompute") else True
    with pytest.raises(ValueError, match=f"`{argument}` must be.*{argument}={wrong}"):
        if argument == "tie_weights":
            layers.AdaptiveSoftmax(layers.AdaptiveEmbedding(20, 8), tie_weights=wrong)
        else:
            layers.TransformerStack([cell], **{"num_layers": 3, argument: wrong})


BAD_VALUES = [
    (layers.AdaptiveEmbedding, "vocabulary_size", [0, -2, 8.0], "a positive integer"),
    (layers.AdaptiveEmbedding, "embedding_dim", [0, -2, 8.0], "a positive integer"),
    (layers.AdaptiveEmbedding, "output_dim", [0, -2, 8.0], "a positive integer"),
    (layers.AdaptiveEmbedding, "div_val", [0, -2, 8.0], "a positive integer"),
    (layers.AdaptiveEmbedding, "cutoffs", [(0, 5), (5, 5), (9, 5), (5, 20)], "must"),
    (layers.AdaptiveEmbedding, "cutoffs", [(-1,), (5.0,), 5, "5"], "must"),
    (layers.AttentionCell, "units", [0], "a positive integer"),
    (layers.AttentionCell, "num_heads", [3], "multiple of `num_heads`"),
    (layers.AttentionCell, "expansion", [0.5], "a positive integer"),
    (layers.AutomatonCell, "filters", [0], "a positive integer"),
    (layers.AutomatonCell, "rank", [3], "an integer from 1 to 2"),
    (layers.AutomatonCell, "step", [0], "a finite number > 0"),
    (layers.BoardCell, "units", [0], "a positive integer"),
    (layers.BoardCell, "box_shape", [(2,)], r"a tuple \(rows, columns\)"),
    (layers.BoardCell, "step", [0], "a finite number > 0"),
    (layers.BoardEmbedding, "vocabulary_size", [0], "a positive integer"),
    (layers.BoardEmbedding, "board_shape", [(4,)], r"a tuple \(rows, columns\)"),
    (layers.BoardEmbedding, "board_shape", [(4, 0)], "a tuple of positive"),
    (layers.BoardEmbedding, "box_shape", [(3, 2)], "must divide those of the board"),
    (layers.BoardEmbedding, "box_shape", [()], "a tuple of positive"),
    (layers.ConvolutionUnit, "kernel_size", [4], "must be odd"),
    (layers.DenseCell, "units", [0], "a positive integer"),
    (layers.GroupNormalization, "groups", [0, -2, 2.0], "must"),
    (layers.GroupNormalization, "axis", [0], "must"),
    (layers.GroupNormalization, "epsilon", [0.0], "> 0"),
    (layers.LayerNormalization, "epsilon", [0], "> 0"),
    (layers.MixerCell, "units", [0], "a positive integer"),
    (layers.MixerCell, "expansion", [0.5], "a positive integer"),
    (layers.MonotoneConvCell, "sign", [0, 2, "x"], "must"),
    (layers.MonotoneDenseCell, "m", [0.0, -1.0, NAN, "small"], "a finite number > 0"),
    (layers.MultiscaleCell, "filters", [(), 8, (8, True)], "a tuple of positive"),
    (layers.MultiscaleCell, "filters", [(8, 9)], "multiples of `groups`"),
    (layers.MultiscaleCell, "groups", [3], "a positive even integer"),
    (layers.MultiscaleCell, "groups", [0], "a positive integer"),
    (layers.MultiscaleCell, "num_blocks", [[1]], "one entry.*2 scales"),
    (layers.MultiscaleCell, "num_blocks", [[1, 0]], r"`num_blocks\[1\]` must be.*pos"),
    (layers.MultiscaleCell, "num_blocks", [1.5], "positive"),
    (layers.MultiscaleCell, "kernel_size", [[3, 3, 3]], "one entry for each"),
    (layers.MultiscaleCell, "kernel_size", [[3, 4]], r"kernel_size\[1\]` must be odd"),
    (
        layers.MultiscaleCell,
        "kernel_size",
        [[3, (3, 5, 3)]],
        r"\[1\]` must be.* a pair",
    ),
    (layers.MultiscaleCell, "kernel_size", [[(3, 4), 3]], r"\[0\]\[1\]` must be odd"),
    (layers.MultiscaleCell, "dropout_rate", [1.0], "a number in"),
    (layers.MultiscaleSegmentationHead, "kernel_size", [4], "must be odd"),
    (layers.MultiscaleStem, "num_downsamplings", [-1, 1.0], "must be"),
    (layers.RecallCell, "filters", [0], "a positive integer"),
    (layers.RecallCell, "rank", [3], "an integer from 1 to 2"),
    (layers.RecallCell, "activation", ["tan"], "'tanh', 'sphere', 'relu'"),
    (layers.ResidualBlockCell, "filters", [0], "a positive integer"),
    (layers.ResidualBlockCell, "groups", [3], "multiples of `groups`"),
    (layers.ResidualBlockCell, "expansion", [0.2, 0.01], "multiples of `groups`"),
    (layers.ResidualBlockCell, "expansion", [-1], "a finite number > 0"),
    (layers.ResidualBlockCell, "kernel_size", [4], "must be odd"),
    (layers.ResidualBlockCell, "dropout_rate", [1.0], "a number in"),
    (layers.SpectrallyNormalizedDense, "max_norm", [0, -1.0, None], "> 0"),
    (layers.SymmetricConv2D, "kernel_size", [4], "must be odd"),
    (layers.SymmetricConv2D, "padding", ["valid"], "can only be"),
    (layers.SymmetricConv2D, "data_format", ["channels_first"], "can only be"),
    (layers.TransformerCell, "units", [0], "a positive integer"),
    (layers.TransformerCell, "intermediate_dim", [1.5], "a positive integer"),
    (layers.TransformerCell, "num_heads", [0], "a positive integer"),
    (layers.TransformerCell, "local_size", [0], "a positive integer"),
    (layers.TransformerCell, "dropout_rate", [1], "a number in"),
    (layers.TransformerCell, "attention_dropout_rate", [1], "a number in"),
    (layers.TrellisCell, "units", [0], "a positive integer"),
    (layers.TrellisCell, "output_dim", [9], "at most the number of units"),
    (layers.TrellisCell, "kernel_size", [1], "an integer >= 2"),
    (layers.TrellisCell, "dilation_rate", [0], "a positive integer"),
    (layers.TrellisCell, "cell_shift", [0], "a positive integer"),
    (layers.TrellisCell, "dropout_rate", [1], "a number in"),
    (layers.TrellisCell, "weight_dropout_rate", [1], "a number in"),
    (layers.VariationalDropout, "rate", [-0.1, 1, 1.5], r"\[0, 1\)"),
    (layers.VariationalDropout, "noise_shape", [3, (0, 1), ("batch", 1)], "must"),
    (models.DEQTransformerBackbone, "vocabulary_size", [0], "a positive integer"),
    (models.DEQTransformerBackbone, "num_heads", [2.0], "a positive integer"),
    (models.DEQTransformerBackbone, "intermediate_dim", [-1], "a positive integer"),
    (models.DEQTransformerBackbone, "embedding_dim", [0], "a positive integer"),
    (models.DEQTransformerBackbone, "memory_length", [-1], "an integer >= 0"),
    (models.DEQTransformerBackbone, "local_size", [0], "a positive integer"),
    (models.DEQTransformerBackbone, "dropout", [1], "a number in"),
    (models.ExplicitTransformerBackbone, "num_layers", [0], "a positive integer"),
    (models.TransformerXLBackbone, "num_layers", [0], "a positive integer"),
    (models.DEQTrellisNetBackbone, "vocabulary_size", [0], "a positive integer"),
    (models.DEQTrellisNetBackbone, "embedding_dim", [0], "a positive integer"),
    (models.DEQTrellisNetBackbone, "kernel_size", [1], "an integer >= 2"),
    (models.DEQTrellisNetBackbone, "dilation_rate", [0], "a positive integer"),
    (models.DEQTrellisNetBackbone, "cell_shift", [0], "a positive integer"),
    (models.DEQTrellisNetBackbone, "memory_length", [-1], "an integer >= 0"),
    (models.DEQTrellisNetBackbone, "token_dropout", [1], "a number in"),
    (models.DEQTrellisNetBackbone, "weight_dropout", ["no"], "a number in"),
    (models.MDEQBackbone, "dropout", [1], "a number in"),
    (models.MDEQBackbone, "image_shape", [(8, 8)], r"a tuple \(height"),
    (
        models.MDEQBackbone,
        "image_shape",
        [(8, 8, 0)],
        r"\[2\]` must be a positive",
    ),
]


@pytest.mark.parametrize(
    ("cls", "name", "value", "expected"),
    [(*case, value, words) for *case, values, words in BAD_VALUES for value in values],
    ids=_name,
)
def test_a_bad_value_is_refused_by_name(cls, name, value, expected):
    with pytest.raises(ValueError, match=rf"{expected}.*Received: .*{name}"):
        cls(**{**BY_CLASS[cls], name: value})
