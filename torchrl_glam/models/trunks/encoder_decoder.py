"""The trunk for encoder-decoder language models (T5, BART, Pegasus): one pass of each per state.

The prompt is encoded once. All candidate actions of a state are read by one decoder pass over their
token trie, in which each node attends to its ancestors and to the encoded prompt. Decoders count
positions by index, so they are told otherwise:

- T5's relative position bias is corrected in the attention mask;
- embedded positions (BART, Pegasus, Marian) are taken at the depth of each node;
- a decoder that takes positions (T5Gemma) is given them.
"""

from contextlib import AbstractContextManager, nullcontext
from inspect import signature

import torch
from torch import Tensor, nn

from torchrl_glam.models.trunks.reader import check_positions
from torchrl_glam.models.trunks.t5 import can_read, read_t5
from torchrl_glam.models.trunks.trie import CandidateTrie
from torchrl_glam.models.trunks.trunk import CandidateTrunk


class EncoderDecoderTrunk(CandidateTrunk):
    """Scores candidates with one encoder pass and one decoder pass over all of them.

    The embedding of the prompt is the decoder's hidden state at its start token.
    Arguments, keys and errors are those of :class:`~torchrl_glam.models.CandidateTrunk`.

    Raises:
        ValueError: also if the model is no encoder-decoder with a language-model head.

    Examples:
        >>> from torchrl_glam.models import load_language_model
        >>> EncoderDecoderTrunk(*load_language_model("tiny")).embedding_dim
        128
    """

    def _check_family(self) -> None:
        super()._check_family()
        if self._start_id() is None:
            raise ValueError(
                f"model ({type(self.base_model).__name__}) names no token to start its decoder "
                "with: set model.config.decoder_start_token_id (for MBart the id of the "
                "language's token)"
            )
        decoder = type(self.base_model.get_decoder())
        self._takes_positions = "position_ids" in signature(decoder.forward).parameters

    def _start_id(self) -> int:
        return getattr(self.base_model.config, "decoder_start_token_id", None)

    def _read(self, prompt: Tensor, prompt_mask: Tensor, trie: CandidateTrie) -> Tensor:
        model = self.base_model
        check_positions("prompts", prompt.shape[1], self.limit)
        nodes = trie.tokens.shape[1]
        check_positions("candidate actions, all of a state together,", nodes, self.limit)
        if can_read(model, prompt):
            allowed, bias = trie.ancestors.unsqueeze(1), self._bias_by_depth(trie)
            bias = torch.where(allowed, bias, torch.finfo(bias.dtype).min)
            return read_t5(model, prompt, prompt_mask, trie.tokens, bias)
        # With a plain mask, transformers asks on the host whether anything is masked, which waits
        # for the GPU. Encoders with windows need the plain mask.
        sdpa = model.config._attn_implementation == "sdpa" and not self.turning_points
        seen = prompt_mask[:, None, None] if sdpa else prompt_mask.long()
        encoded = model.get_encoder()(input_ids=prompt, attention_mask=seen).last_hidden_state
        decoder = model.get_decoder()
        # Some models give padding a position of its own: that of the slots without a node.
        tokens = trie.tokens.where(trie.valid, 1 if self.prompt.pad_id == 0 else 0)
        told = {"position_ids": trie.depth} if self._takes_positions else {}
        with _positions_by_depth(decoder, trie.depth):
            return decoder(
                input_ids=tokens,
                **told,
                attention_mask=self._trie_attention(trie, encoded.dtype),
                encoder_hidden_states=encoded,
                encoder_attention_mask=seen,
                use_cache=False,
            ).last_hidden_state

    def _trie_attention(self, trie: CandidateTrie, dtype: torch.dtype) -> Tensor:
        """Additive mask ``[B, heads or 1, N, N]``: ancestors only.

        T5 adds a bias that depends on how far apart two tokens stand in the sequence. In a trie
        that is their difference in depth, not in index, so the mask carries the difference
        between the bias by depth and the bias by index that the layer is about to add.
        """
        allowed = trie.ancestors.unsqueeze(1)
        bias = allowed.new_zeros((), dtype=dtype)
        if self._is_t5:
            attention = self.base_model.decoder.block[0].layer[0].SelfAttention
            bias = self._bias_by_depth(trie)
            bias = bias - attention.compute_bias(*bias.shape[2:], device=bias.device)
        return torch.where(allowed, bias, torch.finfo(dtype).min).to(dtype)

    def _bias_by_depth(self, trie: CandidateTrie) -> Tensor:
        attention = self.base_model.decoder.block[0].layer[0].SelfAttention
        bucket = attention._relative_position_bucket(
            trie.depth.unsqueeze(1) - trie.depth.unsqueeze(2),
            bidirectional=False,
            num_buckets=attention.relative_attention_num_buckets,
            max_distance=attention.relative_attention_max_distance,
        )
        return attention.relative_attention_bias(bucket).permute(0, 3, 1, 2)

    @property
    def _is_t5(self) -> bool:
        return hasattr(self.base_model.config, "relative_attention_num_buckets")

    def _logits(self, hidden: Tensor) -> Tensor:
        model, config = self.base_model, self.base_model.config
        # MT5 ties its embeddings and does not scale, and says neither.
        scaled = getattr(config, "scale_decoder_outputs", config.tie_word_embeddings)
        if self._is_t5 and scaled and config.model_type != "mt5":
            hidden = hidden * config.d_model**-0.5
        logits = super()._logits(hidden)
        bias = getattr(model, "final_logits_bias", None)
        return logits if bias is None else logits + bias

    def _plain_logits(self, prompt: Tensor, candidate: Tensor) -> Tensor:
        start = torch.full_like(candidate[:, :1], self._start_id())
        decoder_ids = torch.cat([start, candidate], -1)
        return self.base_model(input_ids=prompt, decoder_input_ids=decoder_ids).logits


def _positions_by_depth(decoder: nn.Module, depth: Tensor) -> AbstractContextManager:
    """Within it, a decoder that embeds positions takes those of ``depth``, ``[B, N]``."""

    def at_depth(module: nn.Module, inputs: tuple, by_index: Tensor) -> Tensor:
        table = by_index.reshape(-1, *by_index.shape[-2:])  # [1 or B, N, D]; all rows are equal
        return table[0][depth]

    embed = getattr(decoder, "embed_positions", None)
    return nullcontext() if embed is None else embed.register_forward_hook(at_depth)
