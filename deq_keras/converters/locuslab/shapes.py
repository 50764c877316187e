"""Shapes of a state dict's entries, from which sizes of an architecture are read."""


def shape(state_dict, name, *ranks):
    """Returns the shape of an entry.

    Args:
        state_dict: Dict of names to arrays.
        name: String. Name of the entry.
        *ranks: Positive integers. Numbers of axes that it may have.

    Raises:
        ValueError: If the entry is missing or has another rank.
    """
    if name not in state_dict:
        raise ValueError(f"it has no {name}")
    found = state_dict[name].shape
    if len(found) not in ranks:
        expected = " or ".join(map(str, ranks))
        raise ValueError(f"{name} must have rank {expected}, and has the shape {found}")
    return found


def count(names, pattern, start=0):
    """Returns how many numbers from `start` on, without a gap, names have in a place.

    Args:
        names: Iterable of strings.
        pattern: String. The begin of names with the place, as `"blocks.{}."`.
        start: Integer. The first number. Defaults to `0`.
    """
    number = 0
    while any(name.startswith(pattern.format(start + number)) for name in names):
        number += 1
    return number
