"""Arguments of the layers: NumPy's numbers are taken, other kinds refused by name."""

import json

import numpy as np
import pytest

from deq_keras import layers
from tests import harness

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
    layers.GroupNormalization: {
        "groups": 2,
        "axis": -1,
        "epsilon": 0.5,
        "center": False,
        "scale": True,
    },
    layers.LayerNormalization: {"epsilon": 0.5, "center": False, "scale": True},
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
}
ARGUMENTS = [(cls, name) for cls, given in BY_CLASS.items() for name in given]


def _of_numpy(value):
    if isinstance(value, list | tuple):
        return type(value)(map(_of_numpy, value))
    return None if value is None else np.array(value)[()]


def _name(value):
    return value if isinstance(value, str) else value.__name__


@pytest.mark.parametrize("cls", BY_CLASS, ids=_name)
def test_configs_are_plain_data_that_restore_the_layer(cls):
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


@pytest.mark.parametrize(
    "make",
    [
        lambda side: layers.ConvolutionUnit(4, side),
        lambda side: layers.MultiscaleSegmentationHead(4, kernel_size=side),
        lambda side: layers.ResidualBlockCell(4, kernel_size=side),
        lambda side: layers.SymmetricConv2D(4, side),
    ],
)
def test_a_window_has_a_middle(make):
    """An even one would shift the map by half a position."""
    with pytest.raises(ValueError, match="`kernel_size` must be odd.*kernel_size=4"):
        make(4)
