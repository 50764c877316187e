"""Every shipped config is valid, has its published size, and takes a step a phase."""

from pathlib import Path

import numpy as np
import pytest

from tests.training.runs.small_runs import take_step
from training import registry
from training.config import reading as configs
from training.data import images as datasets
from training.data.segmentation import SegmentationData, cityscapes, shapes
from training.data.text import WordTokenizer
from training.experiments.language_model.text import Text
from training.runs.optimizers import build_optimizer
from training.runs.phases import phase_spans
from training.runs.train import build, enter_phase

FOLDER = Path(__file__).parents[3] / "configs"
CONFIGS = sorted(
    path.relative_to(FOLDER).with_suffix("").as_posix()
    for path in FOLDER.rglob("*.yaml")
)
# Sizes that do not change the number of parameters.
SMALL = {
    "classification": {"data.batch_size": 2},
    "copy_memory": {"data.delay": 5, "data.num_train": 8, "data.num_test": 4},
    "defaults": {"data.train_examples": 8, "data.test_examples": 8},
    "imaging": {"data.size": 16, "data.num_train": 8, "data.batch_size": 2},
    "language_model": {"data.batch_size": 2, "data.length": 8, "data.path": "."},
    "mdeq_segmentation": {
        "data.batch_size": 1,
        "data.crop_size": [64, 64],
        "data.train_examples": None,
        "data.test_examples": None,
    },
    "reasoning": {"data.batch_size": 4},
    "synthetic": {"data.train_examples": 8, "data.validation_examples": 8},
    "trellisnet": {"data.batch_size": 2, "data.length": 8, "data.path": "."},
    "world": {"data.num_train": 8, "data.batch_size": 2},
}
# ImageNet's crops are smaller: the scales still halve them four times.
IMAGES = {
    "cifar10": (32, 3),
    "digits": (8, 1),
    "imagenet2012": (64, 3),
    "tfds": (28, 1),
}
# Trainable parameters of the first variant, or of a named one. Those of the MDEQs and
# of the copy memory task are the reference's. Those of language models are counted by
# hand from the shapes.
PARAMETERS = {
    "copy_memory/long:deq_transformer": 14_538,
    "copy_memory/long:gru": 13_902,
    "copy_memory/long:lstm": 13_770,
    "copy_memory/long:tcn": 16_070,
    "deq_transformer/ptb": 79_215_100,
    "deq_transformer/wikitext103_medium_2019": 97_691_888,
    "deq_transformer/wikitext103_medium_one_table_2019": 171_803_575,
    "deq_transformer/wikitext103_plain": 97_691_888,
    "deq_transformer/wikitext103_preln_regularized": 97_691_888,
    "deq_transformer/wikitext103_regularized": 97_691_888,
    "deq_transformer/wikitext103_regularized_length_300": 97_691_888,
    "deq_transformer/wikitext103_small_2019": 138_646_735,
    "mdeq/cifar10_large": 11_097_438,
    "mdeq/cifar10_large_regularized": 11_097_438,
    "mdeq/cifar10_tiny": 158_890,
    "mdeq/imagenet_large": 67_063_624,
    "mdeq/imagenet_large_regularized": 67_061_224,
    "mdeq/imagenet_small": 16_808_936,
    "mdeq/imagenet_small_regularized": 18_613_496,
    "mdeq/imagenet_xl": 90_463_280,
    "monotone/cifar10_conv": 172_218,
    "monotone/cifar10_multiscale": 170_194,
    "monotone/cifar10_multiscale_large": 1_014_546,
    "monotone/mnist_conv": 79_500,
    "monotone/mnist_dense": 84_313,
    "monotone/mnist_multiscale": 81_394,
    "trellisnet/ptb:equilibrium": 24_192_400,
    "trellisnet/ptb:levels": 24_192_400,
    "trellisnet/wikitext103:equilibrium": 174_168_738,
    "trellisnet/wikitext103:levels": 181_718_490,
}


def load(name):
    """Returns the config of the first variant, or of the one after a colon."""
    path, _, variant = name.partition(":")
    config = configs.load(FOLDER / f"{path}.yaml")
    config = configs.variant(config, variant or configs.variant_names(config)[0])
    changes = dict(SMALL[config.experiment])
    if "imagenet" in name:  # Phases in steps would last as many epochs of few images.
        changes["data.steps_per_epoch"] = 10_010
    small = configs.assign(configs.to_mapping(config), changes.items())
    return configs.resolve({**small, "tasks": None, "variants": {"only": {}}})


def draw_images(config):
    size, num_channels = IMAGES[config.data.name]
    num_classes = 1000 if config.data.name == "imagenet2012" else 10
    shape = (4, size, size, num_channels)
    images = np.random.default_rng(0).integers(0, 256, shape, "uint8")
    split = datasets.in_memory(images, np.arange(4, dtype="int32"))
    means = (124.0, 116.0, 104.0)[:num_channels]
    deviations = (58.0, 57.0, 57.0)[:num_channels]
    return datasets.ImageData(split, split, split, num_classes, means, deviations)


def draw_scenes(config):
    training, test = shapes.load((64, 128), 1, 1)
    return SegmentationData(
        training=training,
        validation=test,
        test=test,
        classes=cityscapes.CLASSES,
        image_size=(64, 128),
        crop_size=(64, 64),
        mean=cityscapes.MEAN,
        standard_deviation=cityscapes.STANDARD_DEVIATION,
    )


def draw_text(config, vocabulary_size):
    words = ["<eos>", *(f"{i}" for i in range(vocabulary_size - 1))]
    tokens = np.random.default_rng(0).integers(0, vocabulary_size, 2**14, "int32")
    return Text(WordTokenizer(words), tokens, tokens, tokens, None)


def make_job(name):
    """Returns the job of a config on drawn data."""
    config = load(name)
    job = registry.implementation(config.experiment)
    if config.experiment == "classification":
        return job(config, lambda: draw_images(config))
    if config.experiment == "mdeq_segmentation" and config.data.name == "cityscapes":
        return job(config, lambda: draw_scenes(config))
    if config.experiment in ("language_model", "trellisnet"):
        size = 267_735 if "wikitext103" in name else 10_000
        return job(config, lambda: draw_text(config, size))
    return job(config)


@pytest.mark.parametrize("name", CONFIGS)
def test_all_variants_are_valid(name):
    config = configs.load(FOLDER / f"{name}.yaml")
    assert configs.resolve(configs.parse(configs.to_yaml(config))) == config
    for variant in configs.variant_names(config):
        one = configs.variant(config, variant)
        spans = phase_spans(one, 100)
        build_optimizer(one.optimizer, spans[-1].steps.stop, 100, one.precision)


@pytest.mark.parametrize(
    "name, weights",
    [
        (
            "deq_transformer/wikitext103_regularized",
            {31: None, 32: 1.9, 34: 1.9, 35: 2.0, 70: 2.1, 279: 2.6, 299: 2.7},
        ),
        ("mdeq/cifar10_large_regularized", {30: None, 31: 0.4, 90: 0.4, 91: None}),
        (
            "mdeq/imagenet_small_regularized",
            {0: 0.03, 50: 0.03, 51: 2.5, 54: 2.5, 55: 2.6, 99: 3.4},
        ),
    ],
)
def test_published_weights_of_the_jacobian_loss(name, weights):
    config = load(name)
    default = 521 if "cifar10" in name else 10_010
    steps_per_epoch = config.data.steps_per_epoch or default
    found = {
        epoch: span.phase.regularizer and span.phase.regularizer["weight"]
        for span in phase_spans(config, steps_per_epoch)
        for epoch in span.epochs
    }
    received = {epoch: found[epoch] for epoch in weights}
    assert received == pytest.approx(weights)


@pytest.mark.large
@pytest.mark.slow
# The gradient of a table that is embedding and softmax at once is dense anyway.
@pytest.mark.filterwarnings("ignore:Converting sparse IndexedSlices:UserWarning")
@pytest.mark.parametrize("name", sorted({*CONFIGS, *PARAMETERS}))
def test_takes_a_step_of_each_phase(name):
    job = make_job(name)
    model, optimizer, spans = build(job)
    trainer = job.wrap_model(model)
    job.distribution.begin(model, optimizer)
    trainable = sum(np.prod(weight.shape) for weight in model.trainable_weights)
    assert trainable == PARAMETERS.get(name, trainable)
    optimizer.build(trainer.trainable_variables)
    # After the warm-up, whose first steps are too small for float32.
    optimizer.iterations.assign(spans[-1].steps.stop // 2)
    for span in {span.path: span for span in spans}.values():
        enter_phase(job, model, span, optimizer, trainer)
        arguments = job.feed.fit_arguments(range(1))
        batch = [arguments[key] for key in ("x", "y") if key in arguments]
        if len(batch) == 1:
            batch = next(iter(batch[0]))
        if job.config.experiment == "imaging":
            # The last convolution of a denoiser starts at zero, so the first step
            # changes no other.
            trainer.train_on_batch(*batch)
        if job.config.experiment != "reasoning" or trainer is model:
            take_step(trainer, *batch)
        else:  # In segments, the first step does not reach every weight.
            assert np.isfinite(trainer.train_on_batch(*batch, return_dict=True)["loss"])
