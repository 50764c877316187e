"""Two moons of drawn points, and a karate club that split."""

import numpy as np

_NUM_NEIGHBORS = 6

# Zachary (1977), "An information flow model for conflict and fission in small groups":
# the friends of member 0, 1, ... who have a higher number, counted from 0.
_FRIENDS = (
    "1 2 3 4 5 6 7 8 10 11 12 13 17 19 21 31;2 3 7 13 17 19 21 30;3 7 8 9 13 27 28 32;"
    "7 12 13;6 10;6 10 16;16;;30 32 33;33;;;;33;32 33;32 33;;;32 33;33;32 33;;32 33;"
    "25 27 29 32 33;25 27 31;31;29 33;33;31 33;32 33;32 33;32 33;33;"
)
EDGES = np.array(
    [
        (member, int(friend))
        for member, friends in enumerate(_FRIENDS.split(";"))
        for friend in friends.split()
    ]
)
# 0 for members who stayed with the instructor, member 0, when the club split; 1 for
# members of the side of the president, member 33.
LABELS = np.ones(34, int)
LABELS[[0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 16, 17, 19, 21]] = 0


def moons(num_nodes, random):
    """Returns points `(nodes, 2)` of two moons, and the matrix of lengths of edges."""
    labels = np.arange(num_nodes) % 2
    angles = np.pi * random.uniform(size=num_nodes)
    points = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    points = np.where(labels[:, None], (1, 0.5) - points, points)
    points += 0.08 * random.normal(size=points.shape)
    lengths = np.linalg.norm(points[:, None] - points, axis=-1)
    is_near = lengths <= np.sort(lengths, axis=1)[:, _NUM_NEIGHBORS, None]
    return points, lengths * (is_near | is_near.T)
