"""Checks of the windows of convolutions."""

from deq_keras.core.checks import check_count


def check_side(name, value):
    """Returns the side of a window, a positive odd integer.

    An odd window has a center and is padded equally on both sides, as in PyTorch. An
    even window would shift the map by half a position.
    """
    side = check_count(name, value)
    if side % 2 == 0:
        raise ValueError(
            f"`{name}` must be odd, so that both sides are padded alike. Received: "
            f"{name}={side}."
        )
    return side


def check_sides(name, value):
    """Returns a positive odd integer, or a list or tuple of two of them, as given."""
    if not isinstance(value, (list, tuple)):
        return check_side(name, value)
    if len(value) != 2:
        raise ValueError(
            f"`{name}` must be an odd integer or a pair of them. Received: "
            f"{name}={value!r}."
        )
    sides = [check_side(f"{name}[{index}]", side) for index, side in enumerate(value)]
    return sides if isinstance(value, list) else tuple(sides)
