import keras

from deq_keras.models.mdeq.mdeq_presets import task_arguments


class MDEQTask:
    """What the tasks on an `MDEQBackbone` have in common, before KerasHub's classes.

    A saved task loads as it was saved: compiled as it had been, or, with Keras'
    `compile=False`, not at all.
    """

    def call(self, inputs, training=None, mask=None):
        # Before Keras casts them to floating-point.
        self.backbone.check_images(inputs)
        return super().call(inputs, training=training, mask=mask)

    def get_compile_config(self):
        config = super().get_compile_config()
        return config and {**config, "has_trained": self.optimizer.built}

    def compile_from_config(self, config):
        # Keras does not do it for models with a `compile` of their own.
        config = dict(config)
        has_trained = config.pop("has_trained")
        self.compile(**keras.saving.deserialize_keras_object(config))
        if has_trained:  # Otherwise the file has no state for the optimizer.
            self.optimizer.build(self.trainable_variables)

    @classmethod
    def from_config(cls, config):
        return super().from_config({"compile": False, **config})

    @classmethod
    def from_preset(cls, preset, load_weights=True, **kwargs):
        """See `keras_hub.models.Task.from_preset`, and that of `MDEQBackbone`."""
        if preset in cls.presets:
            backbone = cls.backbone_cls.from_preset(preset, load_weights)
            arguments = {"backbone": backbone, **task_arguments(preset), **kwargs}
            return cls(**arguments)
        task = super().from_preset(preset, load_weights, **kwargs)
        if not task.compiled:
            task.compile()
        return task
