"""What a cell says that reads texts segment by segment."""

from deq_keras.layers.equilibrium import EquilibriumCell


class SegmentCell(EquilibriumCell):
    """Base of the cells of `SegmentMemory`.

    Their `inject` takes a dict of `"inputs"`, `(batch, length, features)`, and
    `"memory"`, a dict of what is remembered of the positions before, oldest first. The
    memory has as many positions as there have been, up to the length that is carried.
    """

    @property
    def output_dim(self):
        """Size of the features that the layers after the equilibrium see."""
        raise NotImplementedError

    @property
    def memory_sizes(self):
        """Dict of the names of what is remembered of a position, and its sizes."""
        raise NotImplementedError

    def remembered(self, inputs, state):
        """Returns what is remembered of a segment.

        Args:
            inputs: Tensor `(batch, length, features)`.
            state: Its equilibrium.

        Returns:
            Dict of tensors `(batch, length, size)`, of the `memory_sizes`.
        """
        raise NotImplementedError

    def features(self, state):
        """Returns what the layers after the equilibrium see of it.

        Args:
            state: The equilibrium.

        Returns:
            Tensor `(batch, length, output_dim)`.
        """
        raise NotImplementedError
