"""The published architectures, and a small trained model.

Source: the configurations of `locuslab/deq`, MDEQ-Vision, and, for Cityscapes,
`locuslab/mdeq`. Weights of these in Keras' format do not exist.
"""

from deq_keras.models.kerashub import architecture, trained_preset

_CIFAR_LARGE = {
    "filters": (32, 64, 128, 256),
    "num_downsamplings": 0,
    "post_affine": False,
}
_SMALL = {"filters": (32, 64, 128, 256)}
_LARGE = {"filters": (80, 160, 320, 640)}
_XL = {"filters": (88, 176, 352, 704), "expansion": 6}
_CIFAR_HEAD = {
    "num_classes": 10,
    "head_filters": (14, 28, 56, 112),
    "final_filters": 1680,
}
_IMAGENET_HEAD = {
    "num_classes": 1000,
    "head_filters": (32, 64, 128, 256),
    "final_filters": 2048,
}
_CITYSCAPES = {"num_classes": 19}

CLASSIFIERS = {
    "digits": trained_preset("Two scales of 16 channels, for digits of 8 x 8 pixels."),
    "mdeq_tiny_cifar10": architecture(
        "Two scales of 24 channels, 159 thousand parameters, for CIFAR-10.",
        {
            "filters": (24, 24),
            "num_downsamplings": 0,
            "post_affine": False,
            "dropout": 0.25,
        },
        {"num_classes": 10, "head_filters": (8, 16), "final_filters": 200},
    ),
    "mdeq_large_cifar10": architecture(
        "Four scales, 11.1 million parameters, for CIFAR-10.",
        {**_CIFAR_LARGE, "dropout": 0.3},
        _CIFAR_HEAD,
    ),
    "mdeq_large_regularized_cifar10": architecture(
        "The large model for CIFAR-10 as trained with Jacobian regularization.",
        {**_CIFAR_LARGE, "dropout": 0.22},
        _CIFAR_HEAD,
    ),
    "mdeq_small_imagenet": architecture(
        "Four scales, 16.8 million parameters, for ImageNet.",
        _SMALL,
        {**_IMAGENET_HEAD, "head_filters": (24, 48, 96, 192)},
    ),
    "mdeq_small_regularized_imagenet": architecture(
        "18.6 million parameters, for ImageNet, as trained with Jacobian "
        "regularization.",
        {**_SMALL, "post_affine": False, "dropout": 0.02},
        {**_IMAGENET_HEAD, "head_filters": (28, 56, 112, 224)},
    ),
    "mdeq_large_imagenet": architecture(
        "Four scales, 67.1 million parameters, for ImageNet.",
        _LARGE,
        _IMAGENET_HEAD,
    ),
    "mdeq_large_regularized_imagenet": architecture(
        "67.1 million parameters, for ImageNet, as trained with Jacobian "
        "regularization.",
        {**_LARGE, "post_affine": False},
        _IMAGENET_HEAD,
    ),
    "mdeq_xl_imagenet": architecture(
        "Four scales, 90.5 million parameters, for ImageNet.",
        _XL,
        _IMAGENET_HEAD,
    ),
}
SEGMENTERS = {
    "mdeq_small_cityscapes": architecture(
        "Four scales of 32 to 256 channels, for the segmentation of Cityscapes.",
        {**_SMALL, "dropout": 0.05, "batch_norm_momentum": 0.99},
        _CITYSCAPES,
    ),
    "mdeq_large_cityscapes": architecture(
        "Four scales of 80 to 640 channels, for the segmentation of Cityscapes.",
        {**_LARGE, "dropout": 0.03, "batch_norm_momentum": 0.99},
        _CITYSCAPES,
    ),
    "mdeq_xl_cityscapes": architecture(
        "Four scales of 88 to 704 channels, for the segmentation of Cityscapes.",
        {**_XL, "dropout": 0.04, "batch_norm_momentum": 0.99},
        _CITYSCAPES,
    ),
}
