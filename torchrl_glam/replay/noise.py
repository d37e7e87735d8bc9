"""Noise in the texts of replayed transitions."""

from collections.abc import Sequence

import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor
from torchrl.envs.transforms import Transform


class TokenNoise(Transform):
    """Replaces some tokens of a batch by others of the same batch, anew whenever one is drawn.

    Texts that are replayed often are then not learned by heart. Images are augmented likewise in
    reinforcement learning (RAD, Laskin et al., 2020), and words in translation (SwitchOut, Wang et
    al., 2018). PyTorch's global generator draws. In an environment, all observations are noisy.

    Args:
        rate: probability with which a token is replaced, in ``[0, 1]``. Default: ``0.15``.
        pad_id: padding, which is neither replaced nor drawn. Default: ``0``.
        in_keys: integers ``[*B, T]``. Default: ``("observation_tokens",)``.
        out_keys: where noisy tokens go. Default: None, to ``in_keys``.

    Raises:
        ValueError: if ``rate`` is out of range.

    Examples:
        >>> from tensordict import TensorDict
        >>> batch = TensorDict({"observation_tokens": torch.tensor([[5, 6, 0], [7, 8, 9]])}, [2])
        >>> noisy = TokenNoise(rate=1.0)(batch)["observation_tokens"]
        >>> noisy[0, 2].item(), set(noisy.flatten().tolist()) <= {0, 5, 6, 7, 8, 9}
        (0, True)
    """

    def __init__(
        self,
        rate: float = 0.15,
        pad_id: int = 0,
        in_keys: Sequence[NestedKey] = ("observation_tokens",),
        out_keys: Sequence[NestedKey] | None = None,
    ) -> None:
        super().__init__(in_keys=in_keys, out_keys=in_keys if out_keys is None else out_keys)
        if not 0.0 <= rate <= 1.0:
            raise ValueError(f"rate ({rate}) must be in [0, 1]: a probability")
        self.rate, self.pad_id = rate, pad_id

    def _apply_transform(self, tokens: Tensor) -> Tensor:
        if self.rate == 0.0:
            return tokens
        there = tokens != self.pad_id
        given = tokens[there]
        if not len(given):
            return tokens
        drawn = given[torch.randint(len(given), tokens.shape, device=tokens.device)]
        replaced = there & (torch.rand(tokens.shape, device=tokens.device) < self.rate)
        return torch.where(replaced, drawn, tokens)

    def _reset(self, _: TensorDictBase, reset: TensorDictBase) -> TensorDictBase:
        return self._call(reset)
