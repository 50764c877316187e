"""Configs of layers and backbones keep every argument; wrong types raise."""

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
ATTENTION_LAYER = {
    "units": 8,
    "num_heads": 2,
    "intermediate_dim": 16,
    "local_size": 3,
    "dropout_rate": 0.5,
    "attention_dropout_rate": 0.25,
    "weight_normalization": True,
    "seed": 3,
}
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
    layers.GraphCell: {"units": 4, "contraction": 0.5, "seed": 3},
    layers.GroupNormalization: {
        "groups": 2,
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
    layers.TransformerCell: {
        **ATTENTION_LAYER,
        "normalize_first": True,
        "weight_normalization": False,
    },
    layers.TransformerXLCell: ATTENTION_LAYER,
    layers.TransformerXLLayer: {**ATTENTION_LAYER, "normalize_first": True},
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


# Layers of the backbone check these arguments by another name.
ALIASES = {"batch_norm_momentum": "momentum"}


def _as_json(value):
    return json.loads(json.dumps(value))


def _of_numpy(value):
    if isinstance(value, list | tuple):
        return type(value)(map(_of_numpy, value))
    return None if value is None else np.array(value)[()]


def _name(value):
    return getattr(value, "__name__", str(value))


@pytest.mark.parametrize("cls", BY_CLASS, ids=_name)
def test_config_holds_every_argument_as_plain_data(cls):
    arguments = {name: _of_numpy(value) for name, value in BY_CLASS[cls].items()}
    layer = cls(**arguments, name="a")
    config = _as_json(layer.get_config())
    for name, value in BY_CLASS[cls].items():
        assert config[name] is not None and config[name] == _as_json(value), name
    harness.check_round_trip(layer)


@pytest.mark.parametrize("cls", BY_CLASS, ids=_name)
def test_wrong_types_raise(cls):
    for name, value in BY_CLASS[cls].items():
        wrong = 1 if isinstance(value, bool) else True
        with pytest.raises(ValueError, match=rf"`{ALIASES.get(name, name)}`.*Received"):
            cls(**{**BY_CLASS[cls], name: wrong})
