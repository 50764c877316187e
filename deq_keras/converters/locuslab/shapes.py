"""Shapes of a state dict's entries, which determine the sizes of an architecture."""


def shape(state_dict, name, *ranks):
    """Returns the shape of an entry.

    Args:
        state_dict: Dict from names to arrays.
        name: String. Name of the entry.
        *ranks: Positive integers. Valid numbers of axes.

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
    """Counts consecutive numbers, from `start`, that occur in names.

    Args:
        names: Iterable of strings.
        pattern: String. Prefix of the names with a placeholder, such as `"blocks.{}."`.
        start: Integer. The first number. Defaults to `0`.
    """
    number = 0
    while any(name.startswith(pattern.format(start + number)) for name in names):
        number += 1
    return number
