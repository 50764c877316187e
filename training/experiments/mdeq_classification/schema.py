"""What the config of a multiscale DEQ for classification may say, with all defaults."""

from dataclasses import dataclass, field
from typing import Any, Literal

from ...config.bounds import FILTERS, RATE
from ...config.component_fields import (
    gradient_field,
    regularizer_field,
    solver_field,
    start_field,
)
from ..classification.schema import ClassificationConfig

_SCALES = {"max_items": 8, **FILTERS}


@dataclass(frozen=True)
class ExplicitNetworkConfig:
    """An explicit network of KerasHub, for comparison.

    Args:
        network: which.
        upsampling: how many times the images are enlarged first. These networks shrink
            images by 4 before their first block; with 4, the first block of images of
            32 pixels sees 32, as in the networks that are made for CIFAR-10.
    """

    network: Literal["resnet_18", "resnet_101", "densenet_121"]
    upsampling: int = field(default=1, metadata={"minimum": 1, "maximum": 32})


@dataclass(frozen=True)
class MDEQBackboneConfig:
    """Arguments of `MDEQBackbone`; see there.

    Args:
        initial_weights: a `.keras` file of an MDEQ whose backbone's weights the model
            starts from; null draws them.
    """

    filters: list[int] = field(metadata={"non_empty": True, **_SCALES})
    expansion: float = field(default=5, metadata={"above": 0, "maximum": 1000})
    groups: int = field(default=8, metadata=FILTERS)
    num_downsamplings: int = field(default=2, metadata={"minimum": 0, "maximum": 16})
    dropout: float = field(default=0.0, metadata=RATE)
    weight_normalization: bool = True
    block_affine: bool = True
    fuse_affine: bool = True
    post_affine: bool = True
    initial_weights: str | None = None
    solver: Any = solver_field("anderson")
    gradient: Any = gradient_field("neumann")
    regularizer: Any = regularizer_field("contraction")
    start: Any = start_field("cell")


@dataclass(frozen=True)
class MDEQConfig(MDEQBackboneConfig):
    """Arguments of `MDEQBackbone` and `MDEQImageClassifier`; see there.

    Args:
        head_filters: of the classification head, one for each scale.
        final_filters: of the classification head.
        explicit: an explicit network instead of all this.
    """

    head_filters: list[int] = field(default_factory=list, metadata=_SCALES)
    final_filters: int = field(default=200, metadata=FILTERS)
    explicit: ExplicitNetworkConfig | None = None


@dataclass(frozen=True)
class MDEQClassificationConfig(ClassificationConfig):
    """A multiscale DEQ that classifies images; see `ClassificationConfig`."""

    experiment: Literal["mdeq_classification"]
    model: MDEQConfig
