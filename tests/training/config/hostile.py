"""Values that no config holds in earnest, and configs with one of them somewhere."""

import copy

DEEP = []
for _ in range(100):
    DEEP = [DEEP]

WIDE = [0] * 20_000

VALUES = (
    None,
    True,
    0,
    -1,
    1.5,
    3,
    2**31,
    10**12,
    -(10**12),
    10**400,
    float("nan"),
    float("inf"),
    -float("inf"),
    1e-320,
    1e300,
    "",
    " ",
    "x",
    "x" * 300,
    "x" * 10_000,
    "a\0b",
    "a\nb",
    "\ud800",
    "../up",
    "inherit",
    "default",
    "anderson",
    "null",
    [],
    [[]],
    [None],
    [1, "x", {}],
    [10**12],
    WIDE,
    DEEP,
    {},
    {"x": 1},
    {1: 2},
    {None: None},
    {"class_name": []},
    {"class_name": "anderson", "config": {"max_iter": 3}},
    {"class_name": "anderson", "max_iter": 10**9},
    {"class_name": "implicit", "solver": {"class_name": {"class_name": 3}}},
    {"class_name": "residual_block_cell", "filters": [[1]]},
    b"bytes",
    {1, 2},
    (1, 2),
    object(),
)


def places(tree, path=()):
    """Lists the paths of all nodes below the root."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    found = []
    for key, part in items:
        found.append((*path, key))
        if isinstance(part, dict | list):
            found += places(part, (*path, key))
    return found


def mutated(tree, generator):
    """Returns a copy of a tree with one to three nodes replaced, renamed or removed.

    Args:
        tree: a plain tree.
        generator: `random.Random`.
    """
    tree = copy.deepcopy(tree)
    for _ in range(generator.randint(1, 3)):
        *parents, last = generator.choice(places(tree))
        node = tree
        for key in parents:
            node = node[key]
        _mutate(node, last, generator)
        if not tree:
            break
    return tree


def _mutate(node, key, generator):
    kind = generator.random()
    if kind < 0.1:
        del node[key]
    elif kind < 0.2 and isinstance(node, dict):
        name = generator.choice(["x", "", "y" * 5000, 7, None, str(key).upper()])
        node[name] = node.pop(key)
    else:
        node[key] = copy.deepcopy(generator.choice(VALUES))
