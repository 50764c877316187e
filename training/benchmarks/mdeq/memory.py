"""Peak memory of training steps on images of 32 x 32, each in a fresh process."""

from training.benchmarks import fresh_process, resident_memory

BATCH, SIDE = 32, 32
PRESETS = ("mdeq_tiny_cifar10", "mdeq_large_cifar10")
MODELS = {
    **{
        f"{preset}, NFE {budget}": {"preset": preset, "budget": budget}
        for preset in PRESETS
        for budget in (6, 18)
    },
    **{
        f"{preset}, NFE 6, not regularised": {
            "preset": preset,
            "budget": 6,
            "jacobian_regularizer": None,
        }
        for preset in PRESETS
    },
    # Enlarged four times, their first blocks see 32 x 32 positions.
    **{
        network: {"network": network, "upsampling": 4}
        for network in ("resnet_18", "resnet_101", "densenet_121")
    },
}
_MODULE = "training.benchmarks.mdeq.memory"


def training_peaks(effort, chosen=MODELS, batch=BATCH, side=SIDE):
    """Returns by how many MiB memory grows in a training step, by model.

    That is without weights, gradients' accumulators and what the compiled step keeps.
    """
    del effort
    return {
        name: fresh_process.run(
            _MODULE,
            {"batch": batch, "side": side, **model},
            environment=resident_memory.ENVIRONMENT,
        )
        for name, model in chosen.items()
    }


def _measure(batch, side, preset=None, budget=None, network=None, **arguments):
    import tensorflow as tf

    if network is None:
        model = _mdeq(preset, budget, **arguments)
    else:
        model = _explicit(side, network, **arguments)
    images = tf.random.stateless_uniform((batch, side, side, 3), (0, 1))
    labels = tf.range(batch) % 10

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_mean(losses) + sum(model.losses)
        return tape.gradient(loss, model.trainable_variables)

    return resident_memory.peak_growth(step, repeats=3)


def _mdeq(preset, budget, **deq):
    from deq_keras import models

    backbone = models.MDEQBackbone.from_preset(
        preset,
        load_weights=False,
        solver={"class_name": "anderson", "max_iter": budget, "tol": 0.0},
        gradient={"class_name": "neumann", "num_terms": budget},
        **deq,
    )
    return models.MDEQImageClassifier.from_preset(
        preset, load_weights=False, backbone=backbone
    )


def _explicit(side, network, upsampling):
    import numpy as np

    from training.data import ImageData, Split
    from training.experiments.mdeq_classification.build import build_explicit
    from training.experiments.mdeq_schema import ExplicitNetworkConfig, MDEQConfig

    explicit = ExplicitNetworkConfig(network, upsampling)
    split = Split(np.zeros((1, side, side, 3), "uint8"), np.zeros(1, "int32"))
    data = ImageData(split, split, split, 10, (120.0,) * 3, (60.0,) * 3)
    config = MDEQConfig(filters=[1], explicit=explicit)
    return build_explicit(config, data, "float32")


if __name__ == "__main__":
    fresh_process.answer(_measure)
