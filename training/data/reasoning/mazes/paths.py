"""The shortest paths of a maze."""

from typing import NamedTuple


class ShortestPath(NamedTuple):
    """A shortest path.

    Attributes:
        places: list of `(row, column)` from the start to the goal, both included.
        is_only: bool. Whether there is no other as short.
    """

    places: list
    is_only: bool


def shortest_path(is_open, start, goal):
    """Looks for the shortest path, in breadth.

    Args:
        is_open: bool array `(height, width)`, true at corridors.
        start: `(row, column)` of a corridor.
        goal: `(row, column)`.

    Returns:
        A `ShortestPath`, or `None` where no path leads to the goal.
    """
    corridors = set(zip(*map(list, is_open.nonzero()), strict=True))
    previous, ways = {start: None}, {start: 1}
    layer = [start]
    while layer and goal not in ways:
        reached = {}
        for place in layer:
            for neighbour in _neighbours(place):
                if neighbour in corridors and neighbour not in ways:
                    previous.setdefault(neighbour, place)
                    reached[neighbour] = reached.get(neighbour, 0) + ways[place]
        ways.update(reached)
        layer = list(reached)
    if goal not in ways:
        return None
    places = [goal]
    while places[-1] != start:
        places.append(previous[places[-1]])
    return ShortestPath(places[::-1], ways[goal] == 1)


def _neighbours(place):
    row, column = place
    return (
        (row, column + 1),
        (row + 1, column),
        (row, column - 1),
        (row - 1, column),
    )
