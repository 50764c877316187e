"""Models that come back from their file as they were compiled."""

import keras


class RestoredCompilation:
    """Lets a KerasHub task load as it was saved; comes before KerasHub's classes.

    It is compiled as it had been, or, with Keras' `compile=False`, not at all.
    """

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
        """See `keras_hub.models.Task.from_preset`."""
        task = super().from_preset(preset, load_weights, **kwargs)
        if not task.compiled:
            task.compile()
        return task
