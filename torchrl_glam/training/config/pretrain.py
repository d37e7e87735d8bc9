"""Types of the configuration of the embedded model's pre-training."""

from dataclasses import dataclass


@dataclass
class PretrainConfig:
    """Types of ``recipes/config/pretrain_tiny.yaml``, where every key is explained."""

    seed: int
    output: str
    results: str
    num_batches: int
    batch_size: int
    questions: int
    lr: float
    lr_embeddings: float
    decay: float
    max_grad_norm: float
    autocast: bool
    d_model: int
    d_ff: int
    num_heads: int
    num_layers: int
    num_decoder_layers: int
    log_every: int
    entropy_states: int
    episodes: int
    imitate_steps: int
    imitate_batch_size: int
    imitate_lr: float
    imitate_seeds: int
