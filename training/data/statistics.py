"""The normalisation of published datasets."""

from deq_keras.models import MDEQImageConverter


def of_dataset(name):
    """Returns means and standard deviations of the channels, for pixels 0 to 255.

    Args:
        name: str. A dataset of `MDEQImageConverter.statistics`.
    """
    return tuple(
        tuple(255 * value for value in values)
        for values in MDEQImageConverter.statistics[name]
    )
