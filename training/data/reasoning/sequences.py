"""Tasks on sequences: parities of prefixes, classes of chains, products of words."""

import itertools

import numpy as np

from ...errors import InputError
from .task import Levels, ReasoningTask, of_sequences

_CHAIN_CLASSES = 2
_NOISE_FEATURES = 4
_NOISE = 0.3


def compositions(factors, elements):
    """Returns the table of a product of permutations.

    Args:
        factors: Sequence of tuples, permutations of `range(n)`.
        elements: Sequence of permutations, closed under the product with `factors`.

    Returns:
        Integer array `(factors, elements)`: at `[p, q]` the index of the element q
        followed by p, i -> p[q[i]].
    """
    places = {element: place for place, element in enumerate(elements)}
    return np.array(
        [[places[tuple(p[i] for i in q)] for q in elements] for p in factors]
    )


def _is_even(permutation):
    pairs = itertools.combinations(permutation, 2)
    return sum(first > second for first, second in pairs) % 2 == 0


# Lexicographic order puts the identity first.
A5 = tuple(filter(_is_even, itertools.permutations(range(5))))
# Both have order 5. No other pair of permutations reaches all 60 in shorter words.
GENERATORS = (1, 2, 3, 4, 0), (1, 3, 0, 4, 2)
_LETTERS = {"all": A5, "generators": GENERATORS}


class PrefixSums(ReasoningTask):
    """The parity of every prefix of a string of fair bits.

    The input is a bit, 0 or 1, `(length, 1)`. The target at a position is the
    parity of the bits up to it. The last position depends on the first: information
    travels `length - 1` positions. Difficulty is the length.

    Example:

    >>> strings = PrefixSums().examples(np.random.default_rng(0), 2, 4)
    >>> strings.inputs.shape, strings.targets.shape
    ((2, 4, 1), (2, 4))

    Reference:

    - Schwarzschild et al. (2021), "Datasets for Studying Generalization from Easy to
      Hard Examples"
    """

    name = "prefix_sums"
    num_classes = 2
    channels = 1
    mean = 0.5
    levels = Levels("the number of bits", 1, 2**14)

    def positions(self, level):
        return (level,)

    def _draw(self, generator, count, level, held_out):
        del held_out
        bits = generator.integers(2, size=(count, level), dtype="int32")
        parities = np.cumsum(bits, axis=1, dtype="int32") % 2
        return of_sequences(bits[..., None].astype("float32"), parities, level - 1)


class Chains(ReasoningTask):
    """The class of a chain at all of its nodes, given at its first node only.

    A graph has three chains with consecutive nodes. To a cell that sees neighboring
    positions, the node with a class marks the start of a chain. Information travels
    `length - 1` nodes. Difficulty is the length of a chain.

    Example:

    >>> graphs = Chains().examples(np.random.default_rng(0), 2, 8)
    >>> graphs.inputs.shape, graphs.targets.shape
    ((2, 24, 6), (2, 24))

    Reference:

    - Gu et al. (2020), "Implicit Graph Neural Networks", section 5 (there one graph of
      40 chains)
    """

    name = "chains"
    num_chains = 3
    num_classes = _CHAIN_CLASSES
    channels = _CHAIN_CLASSES + _NOISE_FEATURES
    levels = Levels("the number of nodes of a chain", 1, 2**12)

    def positions(self, level):
        return (self.num_chains * level,)

    def _draw(self, generator, count, level, held_out):
        del held_out
        classes = generator.integers(_CHAIN_CLASSES, size=(count, self.num_chains))
        nodes = count, self.num_chains, level
        # The class, one-hot at the first node of a chain and zero at the others.
        ends = np.zeros((*nodes, _CHAIN_CLASSES))
        ends[:, :, 0] = np.eye(_CHAIN_CLASSES)[classes]
        noise = generator.normal(0.0, _NOISE, (*nodes, _NOISE_FEATURES))
        features = np.concatenate([ends, noise], axis=-1).astype("float32")
        features = features.reshape(count, self.num_chains * level, -1)
        graphs = of_sequences(features, np.repeat(classes, level, 1), level - 1)
        return graphs._replace(difficulty=np.full(count, level, "int32"))


class Words(ReasoningTask):
    """The product of every prefix of a word over A5, the even permutations of 5 things.

    The input at a position is the token of a letter, a permutation drawn uniformly. The
    target is the product of the letters up to it. A5 is the smallest group that is not
    solvable, and its word problem is complete for NC1: no stack of a fixed depth solves
    it for all lengths unless TC0 equals NC1. The last position depends on the first:
    information travels `length - 1` positions. Difficulty is the length.

    Args:
        letters: `"all"`, the 60 permutations, with a table of 3600 products to learn;
            or `"generators"`, two permutations whose words of at most six letters reach
            all 60, with a table of 120. Defaults to `"all"`.

    Raises:
        InputError: If `letters` is neither.

    Example:

    >>> words = Words().examples(np.random.default_rng(0), 2, 16)
    >>> words.inputs.shape, words.targets.shape
    ((2, 16), (2, 16))

    Reference:

    - Barrington (1989), "Bounded-Width Polynomial-Size Branching Programs Recognize
      Exactly Those Languages in NC1"
    - Merrill, Petty and Sabharwal (2024), "The Illusion of State in State-Space Models"
    """

    name = "words"
    num_classes = len(A5)
    levels = Levels("the length of the word", 1, 2**14)

    def __init__(self, letters="all"):
        if letters not in _LETTERS:
            raise InputError(
                f"`letters` must be one of {', '.join(map(repr, _LETTERS))}. Received: "
                f"letters={letters!r}."
            )
        self.num_tokens = len(_LETTERS[letters])
        self._after = compositions(_LETTERS[letters], A5)

    def positions(self, level):
        return (level,)

    def _draw(self, generator, count, level, held_out):
        del held_out
        shape = count, level
        letters = generator.integers(self.num_tokens, size=shape, dtype="int32")
        products, product = [], np.zeros(count, "int32")  # The identity.
        for letter in letters.T:
            product = self._after[letter, product]
            products.append(product)
        return of_sequences(letters, np.stack(products, axis=1), level - 1)
