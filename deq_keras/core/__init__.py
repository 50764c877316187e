"""What solvers, gradients and layers share: problems, requests, states."""

__all__: list[str] = []
