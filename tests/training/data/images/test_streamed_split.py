import numpy as np
import pytest
import tensorflow as tf

from training.data.images import evaluation_batches, imagenet, sample, training_batches
from training.data.images.transforms import resized_center_crop
from training.experiments.classification.schema import AugmentationConfig

PLAIN = AugmentationConfig()
RANDOM = AugmentationConfig(resized_crop=True, horizontal_flip=True)


@pytest.fixture
def split(folder):
    return imagenet.load("imagenette", folder, image_size=16)[0]


def labels(split, seed, epochs, batch_size=4):
    batches = training_batches(split, batch_size, PLAIN, seed, epochs)
    return [labels.numpy().tolist() for _, labels in batches]


def in_order(split, batch_size=4):
    batches = evaluation_batches(split, batch_size)
    return [label for _, labels in batches for label in labels.numpy().tolist()]


def test_every_epoch_holds_every_image_once(split):
    batches = labels(split, 0, range(2))
    assert [len(batch) for batch in batches] == [4, 4, 2, 4, 4, 2]
    assert (
        sorted(sum(batches[:3], [])) == sorted(sum(batches[3:], [])) == list(range(10))
    )


def test_order_is_a_function_of_seed_and_epoch(split):
    both = labels(split, 0, range(3, 5))
    tf.random.set_seed(5)
    assert both == labels(split, 0, range(3, 4)) + labels(split, 0, range(4, 5))
    assert both[:3] != both[3:]
    assert both != labels(split, 1, range(3, 5))
    assert both[:3] != [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_order_of_shards_changes(split):
    split.shuffle_buffer = 1
    batches = labels(split, 0, range(8), batch_size=10)
    assert {tuple(batch) for batch in batches} == {
        (0, 5, 1, 6, 2, 7, 3, 8, 4, 9),
        (5, 0, 6, 1, 7, 2, 8, 3, 9, 4),
    }


def test_resumed_epochs_equal_those_of_an_uninterrupted_run(split):
    def images(epochs):
        return [x.numpy() for x, _ in training_batches(split, 4, RANDOM, 7, epochs)]

    whole, resumed = images(range(3)), images(range(2, 3))
    assert [part.shape for part in resumed] == [(4, 16, 16, 3)] * 2 + [(2, 16, 16, 3)]
    for expected, received in zip(whole[6:], resumed, strict=True):
        np.testing.assert_array_equal(received, expected)


def test_every_image_of_every_epoch_has_its_own_augmentation(write_records, tmp_path):
    ramp = np.broadcast_to(np.arange(0, 256, 4)[:, None], (64, 64, 1))
    encoded = tf.io.encode_jpeg(ramp.astype("uint8")).numpy()
    for kind in ("train", "test"):
        file = tmp_path / f"imagenette-{kind}-00000.tfrecord.gz"
        write_records(file, [(encoded, 0)] * 6)
    split, _ = imagenet.load("imagenette", tmp_path, image_size=8)
    batches = training_batches(split, 6, RANDOM, 0, range(2))
    images = np.concatenate([images for images, _ in batches])
    assert images.dtype == np.float32
    assert len({image.tobytes() for image in images}) == 12


def test_images_keep_their_labels(split, shard_examples):
    encoded = dict((label, image) for image, label in shard_examples(0))
    encoded |= dict((label, image) for image, label in shard_examples(5))
    for images, labels in training_batches(split, 4, PLAIN, 0, range(1)):
        assert images.dtype == tf.float32 and labels.dtype == tf.int32
        for image, label in zip(images, labels.numpy(), strict=True):
            expected = resized_center_crop(encoded[label], 16)
            np.testing.assert_array_equal(image, expected)


def test_evaluation_keeps_the_order_and_the_last_batch(split):
    batches = [labels.numpy().tolist() for _, labels in evaluation_batches(split, 4)]
    assert batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


@pytest.mark.parametrize(
    ("start", "stop"),
    [(0, 5), (3, 7), (5, 10), (0, None), (8, 99), (-2, None)],
)
def test_parts_are_those_of_a_list(split, start, stop):
    part = split.part(start, stop)
    expected = list(range(10))[start:stop]
    assert len(part) == len(expected)
    assert in_order(part) == expected


def test_part_of_training(split):
    assert sorted(sum(labels(split.part(3, 7), 0, range(1)), [])) == [3, 4, 5, 6]


def test_parts_of_parts(split):
    assert in_order(split.part(2, 9).part(2, 5)) == [4, 5, 6]


def test_sample(split):
    images = sample(split, 3)
    assert images.shape == (3, 16, 16, 3) and split.image_shape == (16, 16, 3)
    np.testing.assert_array_equal(images, next(iter(evaluation_batches(split, 3)))[0])
    assert len(sample(split, 100)) == 10


def read(folder, stream="training"):
    split, _ = imagenet.load("imagenette", folder, image_size=16)
    if stream == "training":
        return training_batches(split, 4, RANDOM, 0, range(1))
    return evaluation_batches(split, 4)


@pytest.fixture
def damaged(folder, shard_examples, write_records):
    """Writes the second training shard with another record instead of the last."""

    def write(record):
        path = folder / "imagenette-train-00001.tfrecord.gz"
        write_records(path, [*shard_examples(5)[:4], record])
        return folder

    return write


def check_refused(batches, words):
    with pytest.raises(tf.errors.InvalidArgumentError, match=words):
        list(batches)


@pytest.mark.parametrize("stream", ["training", "evaluation"])
def test_truncated_image(damaged, stream, encoded_image):
    encoded = encoded_image(40, 40, seed=0)
    folder = damaged((encoded[: len(encoded) // 2], 3))
    words = r"JPEG file, or truncated.*00001.tfrecord.gz\] \[4\]"
    check_refused(read(folder, stream), words)


@pytest.mark.parametrize("stream", ["training", "evaluation"])
def test_image_of_another_kind(damaged, stream):
    folder = damaged((tf.io.encode_png(np.zeros((40, 40, 3), "uint8")).numpy(), 3))
    words = r"not a JPEG file.*00001.tfrecord.gz\] \[4\]"
    check_refused(read(folder, stream), words)


@pytest.mark.parametrize("encoded", [b"", b"\xff", b"\xff\xd8\xff"])
def test_no_image(damaged, encoded):
    check_refused(read(damaged((encoded, 3))), r"not a JPEG file.*00001.*\] \[4\]")


@pytest.mark.parametrize("label", [10, -1])
def test_label_out_of_range(damaged, encoded_image, label):
    folder = damaged((encoded_image(40, 40, seed=0), label))
    words = rf"0 ... 9. Received: {label}.\] .*00001.tfrecord.gz\] \[4\]"
    check_refused(read(folder), words)


def test_record_of_another_kind(damaged):
    words = r"`image/encoded` and `label`.*00001.*\] \[4\]"
    check_refused(read(damaged(b"not an example")), words)


def test_file_that_was_cut_after_counting(folder):
    batches = read(folder)
    file = folder / "imagenette-train-00001.tfrecord.gz"
    file.write_bytes(file.read_bytes()[:2000])
    check_refused(batches, "missing.*00001")


def test_file_that_was_removed_after_counting(folder):
    batches = read(folder)
    (folder / "imagenette-train-00001.tfrecord.gz").unlink()
    with pytest.raises(tf.errors.NotFoundError, match="00001.tfrecord.gz"):
        list(batches)


def test_whole_image_with_bytes_after_its_end_is_read(
    folder, shard_examples, write_records
):
    ((encoded, label), *_) = shard_examples(0)
    file = folder / "imagenette-test-00000.tfrecord.gz"
    write_records(file, [(encoded + b"padding", label)])
    _, test = imagenet.load("imagenette", folder, image_size=16)
    np.testing.assert_array_equal(sample(test, 1)[0], resized_center_crop(encoded, 16))
