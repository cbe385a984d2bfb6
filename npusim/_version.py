"""The version of npusim."""

__version__ = "0.1.0"
