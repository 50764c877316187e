import pytest
import tensorflow as tf

from training.data.images import evaluation_batches, imagenet
from training.data.records import damage
from training.errors import InputError


def test_a_damaged_record_is_an_input_error(folder, write_records, encoded_image):
    path = folder / "imagenette-test-00000.tfrecord.gz"
    write_records(path, [(encoded_image(20, 20, 0), 3), (encoded_image(9, 9, 0), 77)])
    _, test = imagenet.load("imagenette", folder, 16)
    with pytest.raises(InputError, match=rf"damaged.*0 \.\.\. 9.*77.*{path.name} 1"):
        with damage.reported():
            list(evaluation_batches(test, 2))


def test_other_errors_stay_what_they_are():
    with pytest.raises(tf.errors.InvalidArgumentError):
        with damage.reported():
            tf.debugging.Assert(False, ["Something else"])
