"""The base of all trunks: keys, prompts, tries, log-likelihoods, and passes that fit memory.

A family of language models adds how its model reads.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, get_args

import torch
from tensordict import NestedKey, TensorDictBase
from tensordict.nn import TensorDictModuleBase, dispatch
from torch import Tensor, nn
from torch.nn.functional import pad

from torchrl_glam.models.protocol import Part
from torchrl_glam.models.trunks.exactness import check_exactness
from torchrl_glam.models.trunks.likelihood import Normalisation, log_likelihoods
from torchrl_glam.models.trunks.passes import distinct_rows, in_passes
from torchrl_glam.models.trunks.reader import (
    Limit,
    check_ids,
    check_kind,
    longest_text,
    text_config,
    turning_points,
)
from torchrl_glam.models.trunks.trie import CandidateTrie, admissible_tokens, build_trie
from torchrl_glam.text import PromptBuilder, PromptTemplate, check_composition
from torchrl_glam.text.prompt import EXAMPLE_ACTIONS, EXAMPLES

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class _UnlessAutocast:
    """Whether adapters cast what they read: autocast would cast it back."""

    def __bool__(self) -> bool:
        return not (torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu"))


class CandidateTrunk(TensorDictModuleBase):
    """Reads prompt and candidate actions; writes the inputs of actor and critic.

    For every candidate action it writes the log-likelihood of its tokens after the prompt, eq. 1
    of SAC-GLAM (Gaven et al., 2024), and the last hidden state after its last token (the input of
    the critic, section 2.2); and for the prompt, the hidden state that has read the prompt and no
    action (for the observation-input critic of Appendix B).

    Equal states of a batch are read once, and share dropout if the model is in train mode. On
    construction, a few short candidates are compared with the model's own forward.

    Notation: B any batch shape, A candidate actions, D width of the model.

    Args:
        model: a ``transformers`` model with a language-model head, or the same wrapped by
            ``peft``. It is used in the mode (train or eval) it is in.
        tokenizer: its tokenizer.
        template: the prompt. Default: :class:`~torchrl_glam.text.PromptTemplate`.
        normalisation: ``"sum"`` of the token log-probabilities (eq. 1), or ``"token_mean"``, the
            sum divided by the number of tokens. Default: ``"sum"``.
        max_tokens_per_pass: most tokens, padding included, that one pass of the language model
            reads; a larger batch is read in several. With gradient, each pass is computed again
            when it is back-propagated, which holds one pass in memory and costs a forward more;
            where the loss allows, split the batch instead
            (:func:`~torchrl_glam.models.split_by_tokens`). Default: None, one pass.
        autocast: type in which the model multiplies matrices, ``torch.bfloat16`` where the
            hardware has it. Log-likelihoods then move by some hundredths of a nat. Default:
            None, the type of the weights.
        pad_to_multiple_of: prompts and tries are padded to multiples of this many tokens and
            nodes. Some libraries prepare a kernel for each new shape; rounding keeps shapes few.
            Above 1, the numbers of states and of scored positions are rounded up too. Default: 1.
        goal_key, observation_key, action_key, mask_key: inputs. Tokens of goal ``[*B, Tg]``,
            observation ``[*B, To]`` and candidates ``[*B, A, Ta]``, all padded on the right, and
            the admissible candidates ``[*B, A]`` (bool). Defaults: ``"goal_tokens"``,
            ``"observation_tokens"``, ``"action_tokens"``, ``"action_mask"``.
        log_likelihood_key: output ``[*B, A]``, float32, in nats; 0 where masked. Default:
            ``"log_likelihood"``.
        action_embedding_key: output ``[*B, A, D]``; not meaningful where masked. Default:
            ``"action_embedding"``.
        prompt_embedding_key: output ``[*B, D]``. Default: ``"prompt_embedding"``.

    Raises:
        ValueError: on construction, for an option out of range, a tokenizer that lacks tokens or
            whose tokens of a prompt are not those of its pieces, or a model that this trunk does
            not read as it reads itself; on a call, if the mask does not fit the candidates, an
            admissible one has no tokens or those of another, or a text is longer than the model
            can read.
        KeyError: on a call, if an input is missing.

    Examples:
        >>> from torchrl_glam.models import load_language_model, make_trunk
        >>> isinstance(make_trunk(*load_language_model("tiny")), CandidateTrunk)
        True
    """

    # Whether the model has an encoder: what the tokenizer puts after a text then closes the prompt.
    closes_prompt = True
    # Width D of the embeddings, as the model writes them; configurations may say otherwise.
    embedding_dim: int
    # Most tokens of a text that this trunk reads.
    limit: Limit

    def __init__(
        self,
        model: nn.Module,
        tokenizer: PreTrainedTokenizerBase,
        template: PromptTemplate | None = None,
        *,
        normalisation: Normalisation = "sum",
        max_tokens_per_pass: int | None = None,
        autocast: torch.dtype | None = None,
        pad_to_multiple_of: int = 1,
        goal_key: NestedKey = "goal_tokens",
        observation_key: NestedKey = "observation_tokens",
        action_key: NestedKey = "action_tokens",
        mask_key: NestedKey = "action_mask",
        log_likelihood_key: NestedKey = "log_likelihood",
        action_embedding_key: NestedKey = "action_embedding",
        prompt_embedding_key: NestedKey = "prompt_embedding",
    ) -> None:
        if normalisation not in get_args(Normalisation):
            raise ValueError(
                f"normalisation ({normalisation!r}) must be one of {get_args(Normalisation)}"
            )
        super().__init__()
        self.max_tokens_per_pass, self.pad_to_multiple_of = max_tokens_per_pass, pad_to_multiple_of
        for name in ("max_tokens_per_pass", "pad_to_multiple_of"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name} ({value}) must be at least 1")
        self.model = model
        self.text_config = text_config(self.base_model)
        self._check_family()
        check_kind(self.base_model)
        self.turning_points = turning_points(self.base_model.config)
        self.limit = longest_text(self.text_config)
        self.special_ids = frozenset(tokenizer.all_special_ids)
        self.prompt = PromptBuilder(tokenizer, template, closed=self.closes_prompt)
        # Without an encoder, actions continue the text of the prompt.
        actions = () if self.closes_prompt else EXAMPLE_ACTIONS
        check_composition(tokenizer, self.prompt.template, EXAMPLES, actions)
        self.prompt.to(self.base_model.get_input_embeddings().weight.device)
        self.normalisation = normalisation
        self.autocast = autocast
        for module in model.modules():
            if getattr(module, "cast_input_dtype_enabled", False) is True:  # an adapter of peft
                module.cast_input_dtype_enabled = _UnlessAutocast()
        self.in_keys = [goal_key, observation_key, action_key, mask_key]
        self.out_keys = [log_likelihood_key, action_embedding_key, prompt_embedding_key]
        self._all_out_keys = tuple(self.out_keys)  # of which select_out_keys may leave some out
        self.check_exactness()
        self.register_load_state_dict_post_hook(_check_again)

    def __repr__(self) -> str:
        names = ("normalisation", "max_tokens_per_pass", "autocast", "pad_to_multiple_of")
        settings = "".join(f", {name}={getattr(self, name)}" for name in names)
        return f"{type(self).__name__}(model={type(self.base_model).__name__}{settings})"

    @property
    def base_model(self) -> nn.Module:
        """The ``transformers`` model itself, without the ``peft`` wrapper."""
        wrapped = hasattr(self.model, "get_base_model")
        return self.model.get_base_model() if wrapped else self.model

    def check_exactness(self) -> None:
        """Checks, as on construction, that the trunk computes what its model computes.

        ``load_state_dict`` calls it; call it after replacing weights in another way. Raises
        ValueError if it does not.
        """
        self.embedding_dim = check_exactness(self)

    @dispatch(auto_batch_size=False)
    def forward(self, tensordict: TensorDictBase, only: Part | None = None) -> TensorDictBase:
        """Writes log-likelihoods and embeddings; see the class for keys and shapes.

        Args:
            tensordict: the inputs, of any batch shape.
            only: ``"scores"`` leaves out the action embeddings, and with them the last token of
                each candidate; ``"embeddings"`` the log-likelihoods, and with them the vocabulary
                head; ``"prompt"`` both, and with them the candidates. The prompt's embedding is
                always written. Default: None, everything.
        """
        try:
            return self._write(tensordict, only)
        except RuntimeError as error:
            if "vmap" not in str(error):
                raise
            raise RuntimeError(
                f"{type(self).__name__} cannot run under vmap, as TorchRL's losses run their "
                "networks by default: give the loss deactivate_vmap=True, or use SACGLAMLoss"
            ) from error

    def _write(self, tensordict: TensorDictBase, only: Part | None) -> TensorDictBase:
        batch = tensordict[self.in_keys[-1]].shape[:-1]
        inputs = self.flat_inputs(tensordict)
        if not batch.numel():
            raise ValueError(f"tensordict has the batch size {list(batch)}: give one state or more")
        if only not in (None, *get_args(Part)):
            raise ValueError(f"only ({only!r}) must be None or one of {get_args(Part)}")
        alike = distinct_rows(*(inputs[:2] if only == "prompt" else inputs))
        if alike is not None:
            if only != "prompt":  # which reads no candidates
                # Errors name a state by its place in the batch.
                admissible_tokens(*inputs[2:], self.prompt.pad_id)
            inputs = tuple(value[alike[0]] for value in inputs)
        num_states = len(inputs[-1])
        spare = -num_states % (8 if num_states <= 64 else 32)
        if spare and self.pad_to_multiple_of > 1:
            # Copies of the last state, so that few numbers of states occur.
            inputs = tuple(torch.cat((v, v[-1:].expand(spare, *v.shape[1:]))) for v in inputs)
        try:
            outputs = in_passes(
                lambda *rows: self.score(*rows, only),
                inputs,
                self._count_tokens,
                self.max_tokens_per_pass,
            )
        except IndexError as error:
            check_ids(self.base_model, dict(zip(self.in_keys[:3], inputs, strict=False)), error)
            raise
        back = slice(num_states) if alike is None else alike[1]
        for key, value in zip(self._all_out_keys, outputs, strict=True):
            if value is not None:
                tensordict.set(key, value[back].reshape(*batch, *value.shape[1:]))
        return tensordict

    def flat_inputs(self, tensordict: TensorDictBase) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Goals, observations, candidates and their mask, in one batch dimension."""
        *texts, actions, mask = (tensordict[key] for key in self.in_keys)
        if mask.dtype != torch.bool or mask.shape != actions.shape[:-1]:
            raise ValueError(
                f"{self.in_keys[-1]!r} is {mask.dtype} {tuple(mask.shape)} and {self.in_keys[2]!r} "
                f"has shape {tuple(actions.shape)}: they must be bool [*B, A] and [*B, A, Ta]"
            )
        goal, observation, mask = (value.reshape(-1, value.shape[-1]) for value in (*texts, mask))
        return goal, observation, actions.reshape(-1, *actions.shape[-2:]), mask

    def written_keys(self, only: Part | None = None) -> list[NestedKey]:
        """The keys that a call with ``only`` writes."""
        scores, embeddings, prompt = self._all_out_keys
        parts = {"scores": [scores], "embeddings": [embeddings], "prompt": []}
        return self.out_keys if only is None else [*parts[only], prompt]

    def read_prompts(self, prompt: Tensor, prompt_mask: Tensor) -> Tensor:
        """Hidden states ``[B, D]`` that have read the prompts ``[B, T]``, padded right, alone."""
        # The trie of a masked candidate is node 0 alone.
        masked = prompt.new_zeros(len(prompt), 1, 1)
        trie = self._trie(masked, masked[..., 0].bool())
        with self._autocast(prompt.device):
            return self._read(prompt, prompt_mask, trie)[:, 0]

    def score(
        self,
        goal: Tensor,
        observation: Tensor,
        actions: Tensor,
        mask: Tensor,
        only: Part | None = None,
    ) -> tuple[Tensor | None, Tensor | None, Tensor]:
        """The pass itself, on one batch dimension; shapes as in the class."""
        multiple = self.pad_to_multiple_of
        prompt, prompt_mask = self.prompt(goal, observation)
        short = (0, -prompt.shape[1] % multiple)
        prompt = pad(prompt, short, value=self.prompt.pad_id)
        prompt_mask = pad(prompt_mask, short)
        if only == "prompt":
            return None, None, self.read_prompts(prompt, prompt_mask)
        trie = self._trie(actions, mask, leaves=only != "scores", pad_to_multiple_of=multiple)
        empty = mask.shape[1] - trie.end.shape[1]  # slots behind the last one in use
        with self._autocast(prompt.device):
            hidden = self._read(prompt, prompt_mask, trie)
        scores = None
        if only != "embeddings":
            spare = 1 if multiple == 1 else 256
            scores = log_likelihoods(trie, hidden, self._logits, self.normalisation, spare)
            scores = pad(scores, (0, empty))
        if only == "scores":
            return scores, None, hidden[:, 0]
        ends = trie.end.unsqueeze(-1).expand(-1, -1, hidden.shape[-1])
        return scores, pad(hidden.gather(1, ends), (0, 0, 0, empty)), hidden[:, 0]

    def _autocast(self, device: torch.device) -> torch.autocast:
        return torch.autocast(device.type, self.autocast, enabled=self.autocast is not None)

    def count_tokens(self, tensordict: TensorDictBase) -> tuple[Tensor, Tensor]:
        """Tokens of each prompt and nodes of each trie, ``[*B]`` both, rounded up to multiples."""
        batch = tensordict[self.in_keys[-1]].shape[:-1]
        return tuple(n.view(batch) for n in self._count_tokens(*self.flat_inputs(tensordict)))

    def _count_tokens(
        self, goal: Tensor, observation: Tensor, actions: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        filler = self.prompt.pad_id
        prompts = (goal != filler).sum(-1) + (observation != filler).sum(-1)
        prompts = prompts + self.prompt.num_literal_tokens
        nodes = self._trie(actions, mask).valid.sum(-1)
        multiple = self.pad_to_multiple_of
        return prompts + -prompts % multiple, nodes + -nodes % multiple

    def _check_family(self) -> None:
        """Raises ValueError if this trunk cannot read the model."""
        base = self.base_model
        if base.config.is_encoder_decoder != self.closes_prompt or not base.get_output_embeddings():
            kind = "an encoder-decoder" if self.closes_prompt else "a decoder-only language model"
            raise ValueError(
                f"model ({base.__class__.__name__}) is not {kind} with a language-model head: load "
                "one with load_language_model, or use make_trunk, which picks the trunk"
            )

    @abstractmethod
    def _read(self, prompt: Tensor, prompt_mask: Tensor, trie: CandidateTrie) -> Tensor:
        """Last hidden states at the nodes, ``[B, N, D]``; at node 0 the one before any action."""

    @abstractmethod
    def _plain_logits(self, prompt: Tensor, candidate: Tensor) -> Tensor:
        """Logits of the model's own forward, before and after every token of the candidates.

        Prompts ``[K, T]`` and candidates ``[K, W]`` without padding give ``[K, W + 1, V]``.
        """

    def _logits(self, hidden: Tensor) -> Tensor:
        """The vocabulary head: ``[K, D]`` to ``[K, V]``."""
        config, head = self.text_config, self.base_model.get_output_embeddings()
        if head.weight.is_floating_point():  # which 4-bit weights are not
            hidden = hidden.to(head.weight.dtype)
        logits = head(hidden)
        if (cap := getattr(config, "final_logit_softcapping", None)) is not None:
            logits = cap * torch.tanh(logits / cap)
        if (factor := getattr(config, "logit_scale", None)) is not None:
            logits = logits * factor
        if (divisor := getattr(config, "logits_scaling", None)) is not None:
            logits = logits / divisor
        return logits

    def _start_id(self) -> int:
        """The token at node 0."""
        return self.prompt.pad_id

    def _trie(self, actions: Tensor, mask: Tensor, **options: Any) -> CandidateTrie:
        """The tries of candidates ``[B, A, W]``, as the model reads them."""
        return build_trie(actions, mask, self._start_id(), self.prompt.pad_id, **options)


def _check_again(trunk: CandidateTrunk, keys: Any) -> None:
    trunk.check_exactness()
