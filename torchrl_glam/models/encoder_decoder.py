"""The trunk for encoder-decoder language models of the T5 family: one pass per state.

The prompt is encoded once. All candidate actions of a state are read by one decoder pass over
their token trie (:mod:`torchrl_glam.models.trie`), in which each node attends to its ancestors
and to the encoded prompt.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchrl_glam.models.trie import CandidateTrie
from torchrl_glam.models.trunk import CandidateTrunk


class EncoderDecoderTrunk(CandidateTrunk):
    """Scores candidates with a T5-family model: one encoder pass, one decoder pass over the trie.

    Arguments, keys and errors are those of :class:`~torchrl_glam.models.trunk.CandidateTrunk`.
    The embedding of the prompt is the decoder's hidden state at its start token. T5's positions
    are relative, so texts of any length can be read.

    Raises:
        ValueError: also if the model is not an encoder-decoder with T5's relative position bias.

    Examples:
        >>> from tensordict import TensorDict
        >>> from torchrl_glam.models.loading import load_language_model
        >>> model, tokenizer = load_language_model("tiny")
        >>> trunk = EncoderDecoderTrunk(model, tokenizer)
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

    def _check_family(self) -> None:
        base = self.base_model
        if not is_t5_family(base):
            raise ValueError(
                f"model ({base.__class__.__name__}) is not an encoder-decoder of the T5 family "
                "with a language-model head: load one with load_language_model, for example "
                "'google/flan-t5-base', or use make_trunk, which picks the trunk"
            )

    def _start_id(self) -> int:
        return self.base_model.config.decoder_start_token_id

    def _read(self, prompt: Tensor, prompt_mask: Tensor, trie: CandidateTrie) -> Tensor:
        model = self.base_model
        encoded = model.encoder(input_ids=prompt, attention_mask=prompt_mask).last_hidden_state
        return model.decoder(
            input_ids=trie.tokens,
            attention_mask=self._trie_attention(trie, encoded.dtype),
            encoder_hidden_states=encoded,
            encoder_attention_mask=prompt_mask,
            use_cache=False,
        ).last_hidden_state

    def _trie_attention(self, trie: CandidateTrie, dtype: torch.dtype) -> Tensor:
        """Additive mask ``[B, heads, N, N]``: ancestors only, at distances counted in depth.

        T5 adds a bias that depends on how far apart two tokens stand in the sequence. In a trie
        that is their difference in depth, not in index, so the mask carries the difference
        between the bias by depth and the bias by index that the layer is about to add.
        """
        attention = self.base_model.decoder.block[0].layer[0].SelfAttention
        distance = trie.depth.unsqueeze(1) - trie.depth.unsqueeze(2)
        bucket = attention._relative_position_bucket(
            distance,
            bidirectional=False,
            num_buckets=attention.relative_attention_num_buckets,
            max_distance=attention.relative_attention_max_distance,
        )
        by_depth = attention.relative_attention_bias(bucket).permute(0, 3, 1, 2)
        by_index = attention.compute_bias(bucket.shape[1], bucket.shape[2], device=bucket.device)
        floor = torch.finfo(dtype).min
        allowed = trie.ancestors.unsqueeze(1)
        return torch.where(allowed, by_depth - by_index, floor).to(dtype)

    def _logits(self, hidden: Tensor) -> Tensor:
        config = self.base_model.config
        scaled = getattr(config, "scale_decoder_outputs", config.tie_word_embeddings)
        return self.base_model.lm_head(hidden * config.d_model**-0.5 if scaled else hidden)


def is_t5_family(base: torch.nn.Module) -> bool:
    """Whether a model is an encoder-decoder with T5's relative position bias and a head."""
    return (
        getattr(base.config, "is_encoder_decoder", False)
        and hasattr(base, "lm_head")
        and hasattr(base.config, "relative_attention_num_buckets")
    )
