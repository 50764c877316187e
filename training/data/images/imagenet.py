"""ImageNet and its part Imagenette, streamed from disk."""

from typing import NamedTuple

from . import shards


class Source(NamedTuple):
    """A dataset of TFDS, and what it takes to get it."""

    tfds_name: str
    num_classes: int
    how_to_get: str


SOURCES = {
    "imagenet2012": Source(
        "imagenet2012",
        1000,
        "Register on https://image-net.org/download-images and put "
        "ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar into downloads/manual in "
        "the data folder of TFDS (~/tensorflow_datasets or TFDS_DATA_DIR).",
    ),
    "imagenette": Source(
        "imagenette/320px-v2", 10, "Check the connection to download it."
    ),
}
# Of torchvision's models and the reference, for pixels 0 to 255.
MEAN = tuple(255 * value for value in (0.485, 0.456, 0.406))
STANDARD_DEVIATION = tuple(255 * value for value in (0.229, 0.224, 0.225))


def load(name, directory, image_size):
    """Returns the training and the test `StreamedSplit`; the latter is the validation
    set, since the labels of ImageNet's test set are not public.

    Args:
        name: a key of `SOURCES`.
        directory: folder with `<name>-train-*.tfrecord.gz` and
            `<name>-test-*.tfrecord.gz`, as `tfrecords` describes them, with images
            of any size. `None` takes TFDS.
        image_size: int. Side of the squares that are made of the images.

    Raises:
        InputError: if the data is not there or is damaged.
    """
    source = SOURCES[name]
    if directory is None:
        return shards.from_tfds(
            source.tfds_name,
            ("train", "validation"),
            source.num_classes,
            image_size,
            source.how_to_get,
        )
    return tuple(
        shards.from_folder(directory, name, split, source.num_classes, image_size)
        for split in ("train", "test")
    )
