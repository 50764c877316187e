"""What the backbones of explicit layers of Transformers have in common."""

from deq_keras.checks import check_boolean, check_count
from deq_keras.layers import TransformerStack
from deq_keras.models.transformer_backbone import TransformerBackbone


class TransformerStackBackbone(TransformerBackbone):
    """A `TransformerBackbone` of a `TransformerStack`, whose layers are of `layer_cls`.

    Args:
        num_layers: Positive integer. Number of layers.
        weight_tied: Boolean. Whether all layers are the same.
        recompute: See `TransformerStack`.
        **kwargs: Arguments of `TransformerBackbone`.
    """

    # The class of a layer, and what the names of layers begin with.
    layer_cls = None
    layer_name = None

    def __init__(
        self, vocabulary_size, num_layers, weight_tied=False, recompute=False, **kwargs
    ):
        num_layers = check_count("num_layers", num_layers)
        weight_tied = check_boolean("weight_tied", weight_tied)
        super().__init__(
            vocabulary_size,
            num_layers=num_layers,
            num_cells=1 if weight_tied else num_layers,
            recompute=recompute,
            **kwargs,
        )
        self.num_layers = num_layers
        self.weight_tied = weight_tied
        self.recompute = self.segment_layer.recompute

    @classmethod
    def make_segment_layer(
        cls, cell_arguments, length, dtype, num_layers, num_cells, recompute
    ):
        cells = [
            cls.layer_cls(**cell_arguments, name=f"{cls.layer_name}_{index}")
            for index in range(num_cells)
        ]
        return TransformerStack(
            cells, num_layers, length, recompute, dtype=dtype, name="layers"
        )

    def get_config(self):
        return {
            **super().get_config(),
            "num_layers": self.num_layers,
            "weight_tied": self.weight_tied,
            "recompute": self.recompute,
        }
