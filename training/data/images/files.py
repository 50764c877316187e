"""Read image files from a folder, or any image classification dataset of TFDS.

The folder holds one subfolder for each class, as for
`keras.utils.image_dataset_from_directory`: classes are sorted by name, and files may
lie deeper inside. It is split at random, or has the subfolders `train` and
`validation` or `test`, each with one subfolder for each class; `_SPLITS` lists further
names of these three. Hidden files and folders are ignored.
"""

import os
from pathlib import Path

import numpy as np
import tensorflow as tf

from ...errors import InputError
from ...files.input_file import check_file, check_folder
from .. import corruption, tfds
from ..splits import IndexedSplit
from .imagenet import IMAGE_SIZE
from .transforms import FileTransform

FORMATS = (".bmp", ".gif", ".jpeg", ".jpg", ".png")
# Images that would be missing without a word.
_OTHER_FORMATS = (".avif", ".heic", ".jfif", ".jp2", ".tif", ".tiff", ".webp")
_LAYOUT = (
    "Expected one subfolder for each class, or the subfolders train and validation "
    "with one subfolder for each class."
)
# Names of the folder of a split, in any case.
_SPLITS = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "val": "validation",
    "valid": "validation",
    "dev": "validation",
    "test": "test",
    "testing": "test",
}
# Records from which the next one is drawn.
_SHUFFLE_BUFFER = 8192


class FileSplit(IndexedSplit):
    """Labeled image files. Entries are indices.

    Args:
        paths: List of strings, the paths of the files.
        labels: int32 array `(num_images,)`.
        transform: See `Split`.
    """

    def __init__(self, paths, labels, transform):
        super().__init__(transform)
        self.paths, self.labels = paths, labels

    def __len__(self):
        return len(self.paths)

    def part(self, start, stop):
        paths, labels = self.paths[start:stop], self.labels[start:stop]
        return FileSplit(paths, labels, self.transform)

    def loader(self):
        corruption.add_finder(self._first_corrupt)
        paths, labels = tf.constant(self.paths), tf.constant(self.labels)
        return lambda index: (tf.io.read_file(paths[index]), labels[index])

    def _first_corrupt(self):
        for path, label in zip(self.paths, self.labels, strict=True):
            check_file(path, "image file")
            try:
                self.transform.prepare(tf.io.read_file(path), label)
            except tf.errors.OpError:
                return (
                    f"The file {path} must be a BMP, GIF, JPEG or PNG image. It is "
                    "corrupt, truncated or of another format. Replace the file, or "
                    "remove it."
                )
        return None


def from_folder(config):
    """Returns the splits of the folder of images of a `DataConfig`.

    Returns:
        A tuple of the training, the validation and the test `Split`, and the number of
        classes. The validation split is `None` if the folder does not have all three.

    Raises:
        InputError: If the folder cannot be read, has fewer than two classes, or a class
            without images. Corrupt images only show when they are read.
    """
    directory = Path(config.directory)
    folders = _subfolders(directory)
    found = _folders_of_splits(directory, folders)
    if not found:
        classes = _check_classes(directory, folders)
        paths, labels = _shuffle(*_files(directory, classes), config.split_seed)
        training, test = _cut(_split(config, paths, labels), config.validation_split)
        return training, None, test, len(classes)
    classes = _check_classes(found["train"], _subfolders(found["train"]))
    splits = {
        name: _split(config, *_shuffle(*_files(folder, classes), config.split_seed))
        for name, folder in found.items()
    }
    test = splits.get("test", splits.get("validation"))
    validation = splits["validation"] if len(splits) == 3 else None
    return splits["train"], validation, test, len(classes)


def _folders_of_splits(directory, folders):
    """Returns a dict from the names of splits to their folders; empty if the folders
    are classes. A single class may have the name of a split."""
    found = [name for name in os.listdir(directory) if name.lower() in _SPLITS]
    if not set(found).issubset(folders):
        raise InputError(
            f"{directory} must have a folder for each split. Rename or remove the file "
            f"or broken link. Received: {', '.join(sorted(set(found) - set(folders)))}."
        )
    if len(found) < 2:
        return {}
    splits = {_SPLITS[name.lower()]: directory / name for name in found}
    if len(splits) < len(folders) or "train" not in splits:
        raise InputError(
            f"{directory} must have the folder train, at most one folder of a split, "
            f"and no other folders. {_LAYOUT} Rename or remove folders. Received: "
            f"{', '.join(folders)}."
        )
    return splits


def from_tfds(config):
    """Returns the splits of the TFDS dataset of a `DataConfig`; see `from_folder`.

    A dataset with neither a validation nor a test split is cut.

    Raises:
        InputError: If TFDS cannot prepare the dataset, or it does not have one image
            and one class for each example.
    """
    name = config.dataset
    info = tfds.prepare_info(
        name,
        "Check the name (https://www.tensorflow.org/datasets/catalog) and the "
        "connection, or give the folder of a prepared dataset as `data.directory`.",
        config.directory,
    )
    image, label = _keys(info, name)
    num_classes = info.features[label].num_classes

    def decode(features):
        return features[image], tf.cast(features[label], tf.int32)

    def split(key):
        return tfds.split_of(
            info, key, name, decode, _transform(config), _SHUFFLE_BUFFER
        )

    if "train" not in info.splits:
        raise InputError(
            f"The dataset {name} must have the split train. Received: "
            f"{', '.join(info.splits) or 'no splits'}."
        )
    held_out = [split(key) for key in ("validation", "test") if key in info.splits]
    training = split("train")
    if not held_out:
        training, test = _cut(training, config.validation_split)
        return training, None, test, num_classes
    validation = held_out[0] if len(held_out) == 2 else None
    return training, validation, held_out[-1], num_classes


def _keys(info, name):
    """Returns the names of the features that are the image and its class."""
    import tensorflow_datasets

    features = tensorflow_datasets.features
    kinds = (features.Image, features.ClassLabel)
    keys = info.supervised_keys or ("image", "label")
    is_fit = len(keys) == 2 and all(
        key in info.features and isinstance(info.features[key], kind)
        for key, kind in zip(keys, kinds, strict=True)
    )
    if not is_fit:
        raise InputError(
            f"The dataset {name} must have one image and one class for each example. "
            f"Received: features={', '.join(info.features)}. Choose an image "
            "classification dataset, or save its images in a folder (`data.name: "
            "folder`)."
        )
    return keys


def _transform(config):
    num_channels = 3 if config.color_mode == "rgb" else 1
    return FileTransform(config.image_size or IMAGE_SIZE, num_channels)


def _split(config, paths, labels):
    return FileSplit(paths, labels, _transform(config))


def _cut(split, fraction):
    num_held_out = int(fraction * len(split))
    stop = len(split) - num_held_out
    if not num_held_out or not stop:
        raise InputError(
            "`data.validation_split` must leave images to train on and to evaluate. "
            f"Received: validation_split={fraction} of {len(split)} images."
        )
    return split.part(0, stop), split.part(stop, None)


def _subfolders(directory):
    check_folder(directory, "folder of images")
    with os.scandir(directory) as entries:
        return sorted(
            entry.name
            for entry in entries
            if entry.is_dir() and not entry.name.startswith(".")
        )


def _check_classes(directory, classes):
    if len(classes) < 2:
        raise InputError(
            f"{directory} must have at least two classes. {_LAYOUT} Received: "
            f"{', '.join(classes) or 'no subfolders'}."
        )
    for name in classes:
        nested = sorted(set(classes).intersection(_subfolders(directory / name)))
        if nested:
            raise InputError(
                f"{directory / name} must not have the folder of another class. "
                f"{_LAYOUT} Received: {', '.join(nested)}."
            )
    return classes


def _files(directory, classes):
    """Returns paths and labels of the images of a folder, sorted as Keras does."""
    unknown = sorted(set(_subfolders(directory)) - set(classes))
    if unknown:
        raise InputError(
            f"{directory} must have the classes of the training images. Expected: "
            f"{', '.join(classes)}. Received: {', '.join(unknown)}."
        )
    paths, labels = [], []
    for label, name in enumerate(classes):
        if not (directory / name).exists():
            continue  # A split for evaluation need not have all classes.
        found = [
            os.path.join(root, file)
            for root, _, files in sorted(os.walk(directory / name, onerror=_raise))
            for file in sorted(files)
            if file.lower().endswith((*FORMATS, *_OTHER_FORMATS))
            and f"{os.sep}." not in os.path.join(root, file)[len(str(directory)) :]
        ]
        unread = [path for path in found if path.lower().endswith(_OTHER_FORMATS)]
        if unread:
            raise InputError(
                f"{unread[0]} must be a BMP, GIF, JPEG or PNG image. Convert or remove "
                f"such files. Received: {len(unread)} images of other formats."
            )
        if not found:
            raise InputError(
                f"{directory / name} must have images ({', '.join(FORMATS)}). "
                "Received: no such file. Add images, or remove the folder."
            )
        paths += found
        labels += len(found) * [label]
    if not paths:
        raise InputError(f"{directory} must have images. {_LAYOUT}")
    return paths, np.array(labels, "int32")


def _raise(error):
    raise InputError(f"The folder of images {error.filename} cannot be read: {error}.")


def _shuffle(paths, labels, seed):
    """Returns paths and labels in the order of `image_dataset_from_directory`."""
    order = np.random.RandomState(seed).permutation(len(paths))
    return [paths[index] for index in order], labels[order]
