"""The trunk for decoder-only language models (GPT-2, Llama, Qwen, SmolLM): one pass per state.

Prompt and token trie stand in one sequence, ``[prompt | nodes]``, padded between the two:

- a node sees its prompt and its ancestors, nothing else;
- its position is the prompt's true length plus its depth, so padding moves nothing;
- the prompt's last token is node 0 of the trie: it predicts the candidates' first tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchrl_glam.models._reach import (
    Limit,
    check_positions,
    positions,
    text_config,
    text_model,
    window,
)
from torchrl_glam.models.trie import CandidateTrie
from torchrl_glam.models.trunk import CandidateTrunk

_ATTENTION = ("sdpa", "eager")
_OTHERWISE = (
    ", or read candidates one by one where a window is the limit (RepeatedDecoderOnlyTrunk)"
)


class DecoderOnlyTrunk(CandidateTrunk):
    """Scores candidates with a decoder-only model, in one forward over prompt and trie.

    Arguments, keys and errors are those of :class:`~torchrl_glam.models.trunk.CandidateTrunk`.
    The prompt carries what the tokenizer puts before a text (Llama's ``<s>``) and nothing after
    it, since the action continues the text. The embedding of the prompt is the hidden state at
    its last token.

    On construction, the trunk scores two short candidates and compares them with the model's own
    forward, so that an architecture that does something with masks, positions or logits that is
    not foreseen here is refused instead of scored wrongly.

    Raises:
        ValueError: also if the attention implementation takes no mask of its own (choose
            ``attention="sdpa"`` or ``"eager"`` when loading).

    Examples:
        >>> from tensordict import TensorDict
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> from torchrl_glam.models.loading import load_tokenizer
        >>> tokenizer = load_tokenizer("tiny")
        >>> config = GPT2Config(n_embd=8, n_layer=1, n_head=1, vocab_size=len(tokenizer))
        >>> trunk = DecoderOnlyTrunk(GPT2LMHeadModel(config).eval(), tokenizer)
        >>> ids = lambda text: tokenizer(text, add_special_tokens=False).input_ids
        >>> state = TensorDict({
        ...     "goal_tokens": torch.tensor([ids(" Grasp red lion")]),
        ...     "observation_tokens": torch.tensor([ids("\\nYou see: red lion, blue cat")]),
        ...     "action_tokens": torch.tensor([[ids(" Go to red lion"), ids(" Go to blue cat")]]),
        ...     "action_mask": torch.ones(1, 2, dtype=torch.bool),
        ... }, batch_size=[1])
        >>> trunk(state)["log_likelihood"].shape
        torch.Size([1, 2])
    """

    closes_prompt = False
    any_attention = False

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.check_exactness()

    def _find_limit(self) -> Limit | None:
        config = self._text_config
        limits = [limit for limit in (positions(config), window(config)) if limit is not None]
        return min(limits, default=None)

    def _check_family(self) -> None:
        base = self.base_model
        if getattr(base.config, "is_encoder_decoder", True) or not base.get_output_embeddings():
            raise ValueError(
                f"model ({base.__class__.__name__}) is not a decoder-only language model with a "
                "language-model head: load one with load_language_model, or use make_trunk, which "
                "picks the trunk"
            )
        attention = text_config(base)._attn_implementation
        if attention not in _ATTENTION and not self.any_attention:
            raise ValueError(
                f"model has the attention implementation {attention!r}, "
                f"which takes no mask per node: load it with attention= one of {_ATTENTION}"
            )

    def _read(self, prompt: Tensor, prompt_mask: Tensor, trie: CandidateTrie) -> Tensor:
        base = self.base_model
        longest = prompt.shape[1]
        last = prompt_mask.sum(-1, keepdim=True) - 1
        # Only where it may be too long: on a GPU, the host waits for the answer.
        if self.limit is not None and longest + trie.tokens.shape[1] - 1 > self.limit.tokens:
            tokens = int((last + 1 + trie.depth.amax(-1, keepdim=True)).max())
            check_positions("prompt and candidate actions", tokens, self.limit, _OTHERWISE)
        hidden = text_model(base)(
            input_ids=torch.cat([prompt, trie.tokens[:, 1:]], 1),
            attention_mask=self._attention(prompt_mask, trie),
            position_ids=_position_ids(longest, last, trie),
            use_cache=False,
        ).last_hidden_state
        root = hidden.gather(1, last.unsqueeze(-1).expand(-1, -1, hidden.shape[-1]))
        return torch.cat([root, hidden[:, longest:]], 1)

    def _attention(self, prompt_mask: Tensor, trie: CandidateTrie) -> Tensor:
        """``[B, 1, T + N - 1, T + N - 1]``, bool for sdpa, added to the scores for eager.

        Padding between prompt and nodes sees the prompt before it, and nothing sees padding.
        """
        batch, longest = prompt_mask.shape
        size = longest + trie.tokens.shape[1] - 1
        allowed = prompt_mask.new_zeros(batch, 1, size, size)
        allowed[:, 0, :longest, :longest] = prompt_mask.new_ones(longest, longest).tril()
        allowed[:, 0, longest:, :longest] = prompt_mask.unsqueeze(1)
        allowed[:, 0, longest:, longest:] = trie.ancestors[:, 1:, 1:]
        if self._text_config._attn_implementation == "sdpa":
            return allowed
        dtype = self.autocast or self.base_model.get_input_embeddings().weight.dtype
        return torch.zeros_like(allowed, dtype=dtype).masked_fill_(~allowed, torch.finfo(dtype).min)

    def _plain_logits(self, prompt: Tensor, candidate: Tensor) -> Tensor:
        whole = torch.cat([prompt, candidate], -1)
        return self.base_model(input_ids=whole).logits[:, prompt.shape[1] - 1 :]


def _position_ids(longest: int, last: Tensor, trie: CandidateTrie) -> Tensor:
    """``[B, T + N - 1]``: of a node, the prompt's last position plus its depth."""
    prompt = torch.arange(longest, device=last.device).minimum(
        last
    )  # padding needs none of its own
    return torch.cat([prompt, last + trie.depth[:, 1:]], 1)
