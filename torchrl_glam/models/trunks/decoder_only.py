"""The trunk for decoder-only language models (GPT-2, Llama, Qwen, SmolLM): one pass per state.

Prompt and token trie stand in one sequence, ``[prompt | nodes]``, padded between the two:

- a node sees its prompt and its ancestors, nothing else;
- its position is the prompt's true length plus its depth, so padding moves nothing;
- the prompt's last token is node 0 of the trie: it predicts the candidates' first tokens;
- layers with a window see, of these, what lies within it by position.
"""

import torch
from torch import Tensor

from torchrl_glam.models.trunks.exactness import LONGEST_PROBE, InexactTrunkError
from torchrl_glam.models.trunks.reader import check_positions, longest_text, text_model, windows
from torchrl_glam.models.trunks.trie import CandidateTrie
from torchrl_glam.models.trunks.trunk import CandidateTrunk

_ATTENTION = ("sdpa", "eager")


class DecoderOnlyTrunk(CandidateTrunk):
    """Scores candidates with a decoder-only model, in one forward over prompt and trie.

    Arguments, keys and errors are those of :class:`~torchrl_glam.models.CandidateTrunk`.
    The prompt carries what the tokenizer puts before a text (Llama's ``<s>``) and nothing after
    it, since the action continues the text. The embedding of the prompt is the hidden state at
    its last token.

    Raises:
        ValueError: also if the attention implementation takes no custom mask (choose
            ``attention="sdpa"`` or ``"eager"`` when loading); on a call, if prompt and candidate
            are longer than an attention window that the mask cannot make, or than one above 1,024
            tokens.

    Examples:
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> from torchrl_glam.models.loading import load_tokenizer
        >>> tokenizer = load_tokenizer("tiny")
        >>> config = GPT2Config(n_embd=8, n_layer=1, n_head=1, vocab_size=len(tokenizer))
        >>> DecoderOnlyTrunk(GPT2LMHeadModel(config).eval(), tokenizer).embedding_dim
        8
    """

    closes_prompt = False

    def _check_family(self) -> None:
        super()._check_family()
        attention = self.text_config._attn_implementation
        if attention not in _ATTENTION:
            raise ValueError(
                f"model has the attention implementation {attention!r}, "
                f"which takes no mask per node: load it with attention= one of {_ATTENTION}"
            )

    def check_exactness(self) -> None:
        found, own = windows(self.text_config), longest_text(self.text_config)
        for masked in (True, False):  # a window that no mask makes is the longest text
            short = {k: w.tokens for k, w in found.items() if masked and w.tokens <= LONGEST_PROBE}
            limits = [limit for kind, limit in found.items() if kind not in short]
            self.windows = short
            self.limit = min([*limits, own])
            try:
                return super().check_exactness()
            except InexactTrunkError:
                if not short:
                    raise

    def _read(self, prompt: Tensor, prompt_mask: Tensor, trie: CandidateTrie) -> Tensor:
        longest = prompt.shape[1]
        last = prompt_mask.sum(-1, keepdim=True) - 1
        if longest + trie.tokens.shape[1] - 1 > self.limit.tokens:
            # Only where it may be too long: on a GPU, the host waits for the answer.
            tokens = int((last + 1 + trie.depth.amax(-1, keepdim=True)).max())
            check_positions("prompt and candidate actions", tokens, self.limit)
        # Of a node, the prompt's last position plus its depth; padding needs none of its own.
        positions = torch.arange(longest, device=last.device).minimum(last)
        positions = torch.cat([positions, last + trie.depth[:, 1:]], 1)
        hidden = text_model(self.base_model)(
            input_ids=torch.cat([prompt, trie.tokens[:, 1:]], 1),
            attention_mask=self._attention(prompt_mask, trie, positions),
            position_ids=positions,
            use_cache=False,
        ).last_hidden_state
        root = hidden.gather(1, last.unsqueeze(-1).expand(-1, -1, hidden.shape[-1]))
        return torch.cat([root, hidden[:, longest:]], 1)

    def _attention(
        self, prompt_mask: Tensor, trie: CandidateTrie, positions: Tensor
    ) -> Tensor | dict[str, Tensor]:
        """``[B, 1, T + N - 1, T + N - 1]``, bool for sdpa, added to the scores for eager; where
        layers are of several kinds and some have windows, by kind.

        Padding may see the prompt and the padding before it; no token sees padding.
        """
        batch, longest = prompt_mask.shape
        size = longest + trie.tokens.shape[1] - 1
        allowed = prompt_mask.new_zeros(batch, 1, size, size)
        allowed[:, 0, :longest, :longest] = prompt_mask.new_ones(longest, longest).tril()
        allowed[:, 0, longest:, :longest] = prompt_mask.unsqueeze(1)
        allowed[:, 0, longest:, longest:] = trie.ancestors[:, 1:, 1:]
        masks = {"full_attention": self._as_taken(allowed)}
        for kind, tokens in self.windows.items():
            masks[kind] = self._as_taken(allowed & self._near(kind, tokens, positions))
        kinds = set(getattr(self.text_config, "layer_types", None) or ())
        return masks if self.windows and len(kinds) > 1 else masks[[*masks][-1]]

    def _near(self, kind: str, tokens: int, positions: Tensor) -> Tensor:
        """The positions that layers of a kind see: the last tokens, or those of the same chunk."""
        seeing, seen = positions[:, None, :, None], positions[:, None, None]
        if kind == "sliding_attention":
            return seeing - seen < tokens
        return seeing // tokens == seen // tokens

    def _as_taken(self, allowed: Tensor) -> Tensor:
        if self.text_config._attn_implementation == "sdpa":
            return allowed
        dtype = self.autocast or self.base_model.get_input_embeddings().weight.dtype
        return torch.zeros_like(allowed, dtype=dtype).masked_fill_(~allowed, torch.finfo(dtype).min)

    def _plain_logits(self, prompt: Tensor, candidate: Tensor) -> Tensor:
        whole = torch.cat([prompt, candidate], -1)
        return self.base_model(input_ids=whole).logits[:, prompt.shape[1] - 1 :]
