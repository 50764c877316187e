"""Base class of cells that read texts segment by segment."""

from deq_keras.layers.equilibrium import EquilibriumCell


class SegmentCell(EquilibriumCell):
    """Base class of the cells of `SegmentMemory`.

    `inject` accepts a dict of `"inputs"`, `(batch, length, features)`, and `"memory"`,
    a dict of tensors for the previous positions, oldest first. The memory grows up to
    the length of the `SegmentMemory`.
    """

    @property
    def output_dim(self):
        """Returns the size of the features that the following layers receive."""
        raise NotImplementedError

    @property
    def memory_sizes(self):
        """Returns a dict from the name of each remembered tensor to its last axis."""
        raise NotImplementedError

    def remembered(self, inputs, state):
        """Returns the tensors to remember for a segment.

        Args:
            inputs: Tensor `(batch, length, features)`.
            state: Equilibrium of the segment.

        Returns:
            Dict of tensors `(batch, length, size)`, with sizes from `memory_sizes`.
        """
        raise NotImplementedError

    def features(self, state):
        """Returns the features that the following layers receive.

        Args:
            state: Equilibrium of the segment.

        Returns:
            Tensor `(batch, length, output_dim)`.
        """
        raise NotImplementedError
