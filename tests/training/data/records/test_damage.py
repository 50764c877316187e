import pytest
import tensorflow as tf

from training.data import corruption
from training.data.images import evaluation_batches, imagenet, training_batches
from training.errors import InputError
from training.experiments.classification.schema import AugmentationConfig


def test_a_damaged_record_is_an_input_error(folder, write_records, encoded_image):
    path = folder / "imagenette-test-00000.tfrecord.gz"
    write_records(path, [(encoded_image(20, 20, 0), 3), (encoded_image(9, 9, 0), 77)])
    _, test = imagenet.load("imagenette", folder, 16)
    with pytest.raises(InputError, match=rf"damaged.*0 \.\.\. 9.*77.*{path.name} 1"):
        with corruption.reported():
            list(evaluation_batches(test, 2))


def test_other_errors_stay_what_they_are():
    with pytest.raises(tf.errors.InvalidArgumentError):
        with corruption.reported():
            tf.debugging.Assert(False, ["Something else"])


def test_an_error_while_sound_data_are_read_stays_what_it_is(folder, capsys):
    _, test = imagenet.load("imagenette", folder, 16)
    with pytest.raises(tf.errors.InvalidArgumentError, match="Something else"):
        with corruption.reported():
            for _ in evaluation_batches(test, 2):
                tf.debugging.Assert(False, ["Something else"])
    assert "Looking for what is damaged" in capsys.readouterr().err


@pytest.mark.slow
def test_the_first_damaged_record_is_named(folder, write_records, encoded_image):
    """In the order of the files, whatever the order of the stream."""
    good, bad = (encoded_image(20, 20, 0), 3), (encoded_image(20, 20, 0), 10)
    path = folder / "imagenette-train-00001.tfrecord.gz"
    write_records(path, [good, good, bad, bad])
    training, _ = imagenet.load("imagenette", folder, 16)
    for epoch in range(3):
        with pytest.raises(InputError, match=f"Received: 10. File.*{path} 2"):
            with corruption.reported():
                epochs = range(epoch, epoch + 1)
                list(training_batches(training, 2, AugmentationConfig(), 0, epochs))
