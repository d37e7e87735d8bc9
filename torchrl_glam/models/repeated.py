"""The trunk for encoder-decoder models whose decoder takes candidates one by one only.

Each candidate is read in a row of its own. The prompt is still encoded once per state; its
encoding is repeated per candidate.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchrl_glam.models._reach import check_positions
from torchrl_glam.models.encoder_decoder import EncoderDecoderTrunk
from torchrl_glam.models.trie import CandidateTrie
from torchrl_glam.models.trunk import CandidateTrunk


class RepeatedTrunk(EncoderDecoderTrunk):
    """Scores candidates with any encoder-decoder model: one decoder row per candidate.

    Arguments, keys and errors are those of :class:`~torchrl_glam.models.trunk.CandidateTrunk`. It
    is exact but slower than a trie, the more so the more candidates share a prefix. On
    construction it is checked against the model's own forward.

    Examples:
        >>> from transformers import BartConfig, BartForConditionalGeneration
        >>> from torchrl_glam.models.loading import load_tokenizer
        >>> tokenizer = load_tokenizer("tiny")
        >>> config = BartConfig(
        ...     vocab_size=len(tokenizer), d_model=8, encoder_layers=1, decoder_layers=1,
        ...     encoder_attention_heads=1, decoder_attention_heads=1,
        ... )
        >>> trunk = RepeatedTrunk(BartForConditionalGeneration(config).eval(), tokenizer)
        >>> trunk.out_keys
        ['log_likelihood', 'action_embedding', 'prompt_embedding']
    """

    def __init__(self, *args, **kwargs) -> None:
        CandidateTrunk.__init__(self, *args, **kwargs)  # candidates have no layout to choose
        self.check_exactness()

    def _read(self, prompt: Tensor, prompt_mask: Tensor, trie: CandidateTrie) -> Tensor:
        model = self.base_model
        check_positions("prompts", prompt.shape[1], self.limit)
        longest = trie.path.shape[-1] + 1
        check_positions("candidate actions, with the start,", longest, self.limit)
        seen = prompt_mask.long()  # some models subtract it from 1
        encoded = model.get_encoder()(input_ids=prompt, attention_mask=seen).last_hidden_state
        state, action = trie.is_target[..., 0].nonzero(as_tuple=True)
        start = trie.targets.new_full((len(state), 1), self._start_id())
        rows = torch.cat([start, trie.targets[state, action]], 1)
        read = _with_root(trie.on_path[state, action], True)
        longest = int(read.sum(-1).max()) if len(read) else 1
        rows, read = rows[:, :longest], read[:, :longest]
        hidden = model.get_decoder()(
            input_ids=rows,
            encoder_hidden_states=encoded[state],
            encoder_attention_mask=seen[state],
            use_cache=False,
        ).last_hidden_state
        # Of the rows that run through a node, any one: up to there they read the same tokens.
        nodes = _with_root(trie.path[state, action], 0)[:, :longest]
        slot = (nodes + state.unsqueeze(1) * trie.tokens.shape[1])[read]
        source = slot.new_zeros(trie.tokens.numel())
        source[slot] = read.flatten().nonzero().squeeze(-1)
        return hidden.flatten(0, 1)[source].view(*trie.tokens.shape, -1)


def _with_root(path: Tensor, root: int | bool) -> Tensor:
    """``[R, W]`` to ``[R, W + 1]``: node 0, the start, in front."""
    return torch.nn.functional.pad(path, (1, 0), value=root)
