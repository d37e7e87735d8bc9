"""Games that others wrote, each an extra of this package: ``pip install torchrl_glam[babyai]``."""
