import keras


def fresh(initializer):
    """Returns a copy of an initializer that draws numbers of its own.

    One initializer object without a seed draws the same numbers every time, so layers
    that share it start alike.
    """
    if isinstance(initializer, keras.initializers.Initializer):
        return initializer.clone()
    return initializer
