"""Tensor shapes are checked in every test of this folder: jaxtyping's annotations, enforced by beartype."""

from jaxtyping import install_import_hook

with install_import_hook("seatrial_trainer.algorithms.losses", "beartype.beartype"):
    import seatrial_trainer.algorithms.losses  # noqa: F401  imported to be wrapped
