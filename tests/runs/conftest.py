"""A tiny run and what it is trained on."""

from trained import always_one_thread, finished, run, stripes, undrawn

__all__ = ["always_one_thread", "finished", "run", "stripes", "undrawn"]
