"""What the tasks on a multiscale equilibrium have in common."""

from deq_keras.models.mdeq.mdeq_presets import task_arguments
from deq_keras.models.restored_compilation import RestoredCompilation


class MDEQTask(RestoredCompilation):
    """What the tasks on an `MDEQBackbone` have in common, before KerasHub's classes."""

    def call(self, inputs, training=None, mask=None):
        # Before Keras casts integers to floating-point, which hides their mistake.
        self.backbone.check_images(inputs)
        return super().call(inputs, training=training, mask=mask)

    @classmethod
    def from_preset(cls, preset, load_weights=True, **kwargs):
        """See `keras_hub.models.Task.from_preset`, and that of `MDEQBackbone`."""
        if preset in cls.presets:
            backbone = cls.backbone_cls.from_preset(preset, load_weights)
            arguments = {"backbone": backbone, **task_arguments(preset), **kwargs}
            return cls(**arguments)
        return super().from_preset(preset, load_weights, **kwargs)
