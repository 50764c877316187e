"""Problems, requests and states, which solvers, gradients and layers share."""

__all__: list[str] = []
