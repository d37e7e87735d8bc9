"""What a training run needs around the learning itself: checkpoints, evaluation, logs."""

from torchrl_glam._extras import needs

with needs("recipes", "A run"):
    import hydra  # noqa: F401
