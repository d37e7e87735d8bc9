"""The trunk for decoder-only models that take no mask and no positions but their own.

A prompt is read once, and its keys and values are repeated for each of its candidates. Prompts of
one length are read together, so that nothing is padded before a candidate ends: the model is asked
what it would be asked in generation.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchrl_glam.models._gradient_checkpointing import is_checkpointed
from torchrl_glam.models._reach import Limit, check_positions, positions, text_model
from torchrl_glam.models.decoder_only import DecoderOnlyTrunk
from torchrl_glam.models.trie import CandidateTrie


class RepeatedDecoderOnlyTrunk(DecoderOnlyTrunk):
    """Scores candidates with any decoder-only model: the prompt cached, one row per candidate.

    Arguments, keys and errors are those of :class:`~torchrl_glam.models.trunk.CandidateTrunk`. It
    takes as many passes as there are prompts of different lengths, and is slower than a trie; it
    reads models that count positions by themselves (MPT, Bloom) and prompts longer than a sliding
    window. On construction it is checked against the model's own forward.

    Raises:
        ValueError: also if the model computes its activations again in the backward pass, where
            what is cached would be cached twice.

    Examples:
        >>> from transformers import BloomConfig, BloomForCausalLM
        >>> from torchrl_glam.models.loading import load_tokenizer
        >>> tokenizer = load_tokenizer("tiny")
        >>> config = BloomConfig(vocab_size=len(tokenizer), hidden_size=8, n_layer=1, n_head=2)
        >>> trunk = RepeatedDecoderOnlyTrunk(BloomForCausalLM(config).eval(), tokenizer)
        >>> trunk.out_keys
        ['log_likelihood', 'action_embedding', 'prompt_embedding']
    """

    any_attention = True

    def _check_family(self) -> None:
        super()._check_family()
        if is_checkpointed(self.base_model):
            raise ValueError(
                f"model ({self.base_model.__class__.__name__}) has gradient checkpointing on, and "
                "its prompts are cached, which excludes it: load it with "
                "gradient_checkpointing=False and limit max_tokens_per_pass instead"
            )

    def _find_limit(self) -> Limit | None:
        return positions(self._text_config)

    def _read(self, prompt: Tensor, prompt_mask: Tensor, trie: CandidateTrie) -> Tensor:
        lengths = prompt_mask.sum(-1)
        state, action = trie.is_target[..., 0].nonzero(as_tuple=True)
        path, on_path = trie.path[state, action], trie.on_path[state, action]
        longest = int(on_path.sum(-1).max()) if len(state) else 0
        path, on_path = path[:, :longest], on_path[:, :longest]
        tokens = trie.targets[state, action, :longest]
        check_positions("prompt and candidate actions", int(lengths.max()) + longest, self.limit)
        # Hidden states that nodes are taken from: of the prompts' last tokens, then of the rows'.
        order, roots, values = [], [], []
        for length in lengths.unique().tolist():
            group = (lengths == length).nonzero().squeeze(-1)
            rows = torch.isin(state, group).nonzero().squeeze(-1)
            which = torch.searchsorted(group, state[rows])
            root, hidden = self._read_group(prompt[group, :length], which, tokens[rows])
            order.append((group, rows))
            roots.append(root)
            values.append(hidden)
        back, back_rows = (torch.cat(parts).argsort() for parts in zip(*order, strict=True))
        flat = [torch.cat(roots)[back], torch.cat(values)[back_rows].flatten(0, 1)]
        # Of the rows that run through a node, any one: up to there they read the same tokens.
        number = trie.tokens.shape[1]
        source = torch.arange(len(prompt), device=prompt.device).repeat_interleave(number)
        slot = (path + state.unsqueeze(1) * number)[on_path]
        source[slot] = len(prompt) + on_path.flatten().nonzero().squeeze(-1)
        return torch.cat(flat)[source].view(*trie.tokens.shape, -1)

    def _read_group(self, prompt: Tensor, which: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Prompts ``[G, L]`` and candidates ``[R, W]`` of prompts ``which``: ``[G, D]``,
        ``[R, W, D]``."""
        read = text_model(self.base_model)
        out = read(input_ids=prompt, use_cache=True)
        root = out.last_hidden_state[:, -1]
        if not tokens.numel():
            return root, root.new_zeros(*tokens.shape, root.shape[-1])
        cache = out.past_key_values
        cache.batch_select_indices(which)
        out = read(input_ids=tokens, past_key_values=cache, use_cache=True)
        return root, out.last_hidden_state
