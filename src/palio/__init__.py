"""palio: a race that makes training data, and the recipe that distils a small agent from it."""

__version__ = "0.1.0"

__all__ = ["__version__"]
