"""Words over the alternating group A5, whose products are to be followed."""

import itertools

import numpy as np

from ...errors import InputError
from .task import Levels, ReasoningTask, of_sequences


def compositions(factors, elements):
    """Returns the table of a product of permutations.

    Args:
        factors: sequence of tuples, permutations of `range(n)`.
        elements: sequence of such tuples, closed under the product with `factors`.

    Returns:
        int array `(factors, elements)`: at `[p, q]` which element is q followed by p,
        i -> p[q[i]].
    """
    places = {element: place for place, element in enumerate(elements)}
    return np.array(
        [[places[tuple(p[i] for i in q)] for q in elements] for p in factors]
    )


def running_products(table, factors):
    """Returns the products of all prefixes of words, `(batch, length)`.

    Args:
        table: what `compositions` returns. The first element is the identity.
        factors: int array `(batch, length)` of indices of factors.
    """
    product = np.zeros(len(factors), "int32")
    products = []
    for factor in factors.T:
        product = table[factor, product]
        products.append(product)
    return np.stack(products, axis=1)


def _is_even(permutation):
    pairs = itertools.combinations(permutation, 2)
    return sum(first > second for first, second in pairs) % 2 == 0


# In lexicographic order, so that the identity is the first.
A5 = tuple(filter(_is_even, itertools.permutations(range(5))))
# Both of order 5. No two permutations lead to all of them in shorter words: with some
# pairs, short words hardly meet some of the 60.
GENERATORS = (1, 2, 3, 4, 0), (1, 3, 0, 4, 2)
_LETTERS = {"all": A5, "generators": GENERATORS}


class Words(ReasoningTask):
    """Which of the 60 even permutations of five things every prefix of a word is.

    The input at a position is the token of a letter, one of the permutations, drawn
    evenly. The target is the product of those up to it, each after the one before. A5
    is the smallest group that is not solvable, and its word problem is complete for
    NC1: no stack of a fixed depth solves it for all lengths, if TC0 is not NC1. The
    last position hangs on the first: information travels `length - 1` positions.
    Difficulty is the length.

    Args:
        letters: `"all"`, the 60 permutations, whose table of 3600 products has to be
            learnt; or `"generators"`, two of them whose words of at most six letters
            lead to all 60, with a table of 120. Defaults to `"all"`.

    Raises:
        InputError: if `letters` is neither.

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
        return of_sequences(letters, running_products(self._after, letters), level - 1)
