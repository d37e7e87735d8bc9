"""Trunks for decoder-only language models (GPT-2, Llama, Qwen, SmolLM).

:class:`DecoderOnlyTrunk` makes one pass per state. Prompt and token trie stand in one sequence,
``[prompt | nodes]``, padded between the two:

- a node sees its prompt and its ancestors, nothing else;
- its position is the prompt's true length plus its depth, so padding moves nothing;
- the prompt's last token is node 0 of the trie: it predicts the candidates' first tokens.

:class:`RepeatedDecoderOnlyTrunk` is for models that take no mask and no positions but their own. A
prompt is read once, and its keys and values are repeated for each candidate. Prompts of one length
are read together, so nothing is padded before a candidate ends, as in generation.
"""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor

from torchrl_glam.models.trunks.exactness import InexactTrunkError, check_exactness
from torchrl_glam.models.trunks.gradients import is_checkpointed
from torchrl_glam.models.trunks.reader import check_positions, text_config, text_model, window
from torchrl_glam.models.trunks.trie import CandidateTrie
from torchrl_glam.models.trunks.trunk import CandidateTrunk

_ATTENTION = ("sdpa", "eager")


class DecoderOnlyTrunk(CandidateTrunk):
    """Scores candidates with a decoder-only model, in one forward over prompt and trie.

    Arguments, keys and errors are those of :class:`~torchrl_glam.models.CandidateTrunk`.
    The prompt carries what the tokenizer puts before a text (Llama's ``<s>``) and nothing after
    it, since the action continues the text. The embedding of the prompt is the hidden state at
    its last token.

    Texts longer than a sliding window of the model are read as
    :class:`RepeatedDecoderOnlyTrunk` reads them, with a warning: exact, and slower. On
    construction, the trunk compares a few short candidates with the model's own forward.

    Raises:
        ValueError: also if the attention implementation takes no custom mask (choose
            ``attention="sdpa"`` or ``"eager"`` when loading).

    Examples:
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> from torchrl_glam.models.loading import load_tokenizer
        >>> tokenizer = load_tokenizer("tiny")
        >>> config = GPT2Config(n_embd=8, n_layer=1, n_head=1, vocab_size=len(tokenizer))
        >>> DecoderOnlyTrunk(GPT2LMHeadModel(config).eval(), tokenizer).embedding_dim
        8
    """

    closes_prompt = False

    def check_exactness(self) -> None:
        self.window = window(self.text_config)
        super().check_exactness()
        if self.window is None:
            return
        try:
            check_exactness(self, beyond=True)
        except InexactTrunkError:
            limits = [limit for limit in (self.limit, self.window) if limit is not None]
            self.limit, self.window = min(limits), None

    def _check_family(self) -> None:
        super()._check_family()
        attention = text_config(self.base_model)._attn_implementation
        if attention not in _ATTENTION:
            raise ValueError(
                f"model has the attention implementation {attention!r}, "
                f"which takes no mask per node: load it with attention= one of {_ATTENTION}"
            )

    def _read(self, prompt: Tensor, prompt_mask: Tensor, trie: CandidateTrie) -> Tensor:
        base = self.base_model
        longest = prompt.shape[1]
        last = prompt_mask.sum(-1, keepdim=True) - 1
        # Only where it may be too long: on a GPU, the host waits for the answer.
        limits = [limit.tokens for limit in (self.limit, self.window) if limit is not None]
        if longest + trie.tokens.shape[1] - 1 > min(limits, default=math.inf):
            tokens = int((last + 1 + trie.depth.amax(-1, keepdim=True)).max())
            check_positions("prompt and candidate actions", tokens, self.limit)
            if self.window is not None and tokens > self.window.tokens:
                warnings.warn(
                    f"{base.__class__.__name__} {self.window.why}: longer texts are read with the "
                    "prompt cached and every candidate apart, which is exact and slower",
                    stacklevel=2,
                )
                return self._read_apart(prompt, prompt_mask, trie)
        # Of a node, the prompt's last position plus its depth; padding needs none of its own.
        positions = torch.arange(longest, device=last.device).minimum(last)
        hidden = text_model(base)(
            input_ids=torch.cat([prompt, trie.tokens[:, 1:]], 1),
            attention_mask=self._attention(prompt_mask, trie),
            position_ids=torch.cat([positions, last + trie.depth[:, 1:]], 1),
            use_cache=False,
        ).last_hidden_state
        root = hidden.gather(1, last.unsqueeze(-1).expand(-1, -1, hidden.shape[-1]))
        return torch.cat([root, hidden[:, longest:]], 1)

    def _read_apart(self, prompt: Tensor, prompt_mask: Tensor, trie: CandidateTrie) -> Tensor:
        """Reads prompts of one length together, and then their candidates, one row each."""
        if torch.is_grad_enabled():
            self._refuse_checkpoints()
        lengths = prompt_mask.sum(-1)
        state, action, tokens = trie.rows()
        longest = int(lengths.max()) + tokens.shape[1]
        check_positions("prompt and candidate actions", longest, self.limit)
        # Hidden states at the prompts' last tokens, and those along the rows.
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
        roots, rows = torch.cat(roots)[back], torch.cat(values)[back_rows]
        return trie.nodes_of_rows(roots, rows, state, action)

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

    def _refuse_checkpoints(self) -> None:
        if is_checkpointed(self.base_model):
            raise ValueError(
                f"model ({type(self.base_model).__name__}) has gradient checkpointing on, and its "
                "prompts are cached, which excludes it: load it with gradient_checkpointing=False "
                "and limit max_tokens_per_pass instead"
            )

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
        if self.text_config._attn_implementation == "sdpa":
            return allowed
        dtype = self.autocast or self.base_model.get_input_embeddings().weight.dtype
        return torch.zeros_like(allowed, dtype=dtype).masked_fill_(~allowed, torch.finfo(dtype).min)

    def _plain_logits(self, prompt: Tensor, candidate: Tensor) -> Tensor:
        whole = torch.cat([prompt, candidate], -1)
        return self.base_model(input_ids=whole).logits[:, prompt.shape[1] - 1 :]


class RepeatedDecoderOnlyTrunk(DecoderOnlyTrunk):
    """Scores candidates with any decoder-only model: the prompt cached, one row per candidate.

    Arguments, keys and errors are those of :class:`~torchrl_glam.models.CandidateTrunk`. It reads
    models that count positions by themselves (MPT, Bloom), in as many passes as there are prompts
    of different lengths, and is slower than a trie.

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

    def _check_family(self) -> None:
        CandidateTrunk._check_family(self)  # any attention will do
        self._refuse_checkpoints()

    def check_exactness(self) -> None:
        CandidateTrunk.check_exactness(self)

    def _read(self, prompt: Tensor, prompt_mask: Tensor, trie: CandidateTrie) -> Tensor:
        return self._read_apart(prompt, prompt_mask, trie)
