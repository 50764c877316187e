"""On which devices, and in how many processes, a run trains."""

from .one_device import OneDevice
from .start import start

__all__ = ["OneDevice", "start"]
