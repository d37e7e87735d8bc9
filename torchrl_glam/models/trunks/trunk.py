"""The base of all trunks: keys, prompts, tries, log-likelihoods, and passes that fit memory.

A family of language models adds how its model reads (:mod:`torchrl_glam.models.trunks.reader`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from tensordict import NestedKey, TensorDictBase
from tensordict.nn import dispatch
from torch import Tensor, nn

from torchrl_glam.models.protocol import Part
from torchrl_glam.models.trunks.likelihood import LogLikelihood, Normalisation
from torchrl_glam.models.trunks.passes import distinct_rows, in_passes, repeat_last, token_passes
from torchrl_glam.models.trunks.reader import ModelReader, check_ids
from torchrl_glam.models.trunks.trie import admissible_tokens
from torchrl_glam.text import PromptTemplate

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class CandidateTrunk(ModelReader):
    """Reads prompt and candidate actions; writes the inputs of actor and critic.

    For every candidate action it writes the log-likelihood of its tokens after the prompt, eq. 1
    of SAC-GLAM (Gaven et al., 2024), and the last hidden state after its last token (the input of
    the critic, section 2.2); and for the prompt, the hidden state that has read the prompt and no
    action (for the observation-input critic of Appendix B).

    Equal states of a batch are read once, and share dropout if the model is in train mode.

    Notation: B any batch shape, A candidate actions, D width of the model.

    Args:
        model: a ``transformers`` model with a language-model head, or the same wrapped by
            ``peft``. It is used in the mode (train or eval) it is in.
        tokenizer: its tokenizer.
        template: the prompt. Default: :class:`~torchrl_glam.text.PromptTemplate`.
        normalisation: ``"sum"`` of the token log-probabilities (eq. 1), ``"token_mean"``, or
            ``"word_mean"``, the sum divided by the number of words (TWOSOME, Tan et al., 2024).
            Default: ``"sum"``.
        max_tokens_per_pass: most tokens, padding included, that one pass of the language model
            reads; a larger batch is read in several. With gradient, each pass is computed again
            when it is back-propagated, which holds one pass in memory and costs a forward more;
            where the loss allows, split the batch instead
            (:func:`~torchrl_glam.models.split_by_tokens`). Default: None, one pass.
        autocast: type in which the model multiplies matrices, ``torch.bfloat16`` where the
            hardware has it. Log-likelihoods then move by some hundredths of a nat. Default:
            None, the type of the weights.
        pad_to_multiple_of: prompts and tries are padded to multiples of this many tokens and
            nodes, so that few shapes occur, for each of which kernels are made. Above 1, states and
            scored positions are rounded up too. Default: 1.
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
            not read as it reads itself; on a call, if an admissible candidate has no tokens or
            those of another one, or a text is longer than the model can read.

    Examples:
        >>> from torchrl_glam.models import load_language_model, make_trunk
        >>> isinstance(make_trunk(*load_language_model("tiny")), CandidateTrunk)
        True
    """

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
        _check_positive("max_tokens_per_pass", max_tokens_per_pass, ", or None for one pass")
        _check_positive("pad_to_multiple_of", pad_to_multiple_of)
        super().__init__(model, tokenizer, template)
        self.likelihood = LogLikelihood(
            tokenizer,
            normalisation,
            pad_to_multiple_of=1 if pad_to_multiple_of == 1 else 256,
        )
        device = self.base_model.get_input_embeddings().weight.device
        for part in (self.prompt, self.likelihood):
            part.to(device)
        self.max_tokens_per_pass = max_tokens_per_pass
        self.autocast = autocast
        self.pad_to_multiple_of = pad_to_multiple_of
        self.in_keys = [goal_key, observation_key, action_key, mask_key]
        self.out_keys = [log_likelihood_key, action_embedding_key, prompt_embedding_key]

    def __repr__(self) -> str:
        settings = {
            "model": type(self.base_model).__name__,
            "normalisation": self.likelihood.normalisation,
            "max_tokens_per_pass": self.max_tokens_per_pass,
            "autocast": self.autocast,
            "pad_to_multiple_of": self.pad_to_multiple_of,
            "packed": self.packed,
        }
        return f"{type(self).__name__}({', '.join(f'{k}={v}' for k, v in settings.items())})"

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
        goal, observation, actions, mask = (tensordict.get(key) for key in self.in_keys)
        batch = mask.shape[:-1]
        inputs = (
            goal.reshape(-1, goal.shape[-1]),
            observation.reshape(-1, observation.shape[-1]),
            actions.reshape(-1, *actions.shape[-2:]),
            mask.reshape(-1, mask.shape[-1]),
        )
        alike = distinct_rows(*(inputs[:2] if only == "prompt" else inputs))
        if alike is not None:
            rows, _ = alike
            if only != "prompt":  # which reads no candidates
                # Errors name a state by its place in the batch.
                admissible_tokens(*inputs[2:], self.prompt.pad_id)
            inputs = tuple(value[rows] for value in inputs)
        num_states = len(inputs[-1])
        inputs = tuple(repeat_last(value, self._spare_states(num_states)) for value in inputs)
        try:
            outputs = self._score_in_passes(inputs, only)
        except IndexError as error:
            check_ids(self.base_model, dict(zip(self.in_keys[:3], inputs, strict=False)), error)
            raise
        back = slice(num_states) if alike is None else alike[1]
        outputs = tuple(None if value is None else value[back] for value in outputs)
        for key, value in zip(self.out_keys, outputs, strict=True):
            if value is not None:
                tensordict.set(key, value.reshape(*batch, *value.shape[1:]))
        return tensordict

    def written_keys(self, only: Part | None = None) -> list[NestedKey]:
        """The keys that a call with ``only`` writes."""
        scores, embeddings, prompt = self.out_keys
        parts = {"scores": [scores], "embeddings": [embeddings], "prompt": []}
        return self.out_keys if only is None else [*parts[only], prompt]

    def read_prompts(self, prompt: Tensor, prompt_mask: Tensor) -> Tensor:
        """Hidden states ``[B, D]`` that have read the prompts ``[B, T]``, padded right, alone."""
        # A candidate of one token has no node of its own without leaves: node 0 is left.
        other = 1 if self.prompt.pad_id == 0 else 0
        candidate = prompt.new_full((len(prompt), 1, 1), other)
        everything = torch.ones_like(candidate[..., 0], dtype=torch.bool)
        trie = self._trie(candidate, everything, leaves=False)
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
        pad, multiple = self.prompt.pad_id, self.pad_to_multiple_of
        prompt, prompt_mask = self.prompt(goal, observation)
        short = (0, -prompt.shape[1] % multiple)
        prompt = torch.nn.functional.pad(prompt, short, value=pad)
        prompt_mask = torch.nn.functional.pad(prompt_mask, short)
        if only == "prompt":
            return None, None, self.read_prompts(prompt, prompt_mask)
        trie = self._trie(actions, mask, leaves=only != "scores", pad_to_multiple_of=multiple)
        with self._autocast(prompt.device):
            hidden = self._read(prompt, prompt_mask, trie)
        scores = None if only == "embeddings" else self.likelihood(trie, hidden, self._logits)
        if only == "scores":
            return scores, None, hidden[:, 0]
        ends = trie.end.unsqueeze(-1).expand(-1, -1, hidden.shape[-1])
        return scores, hidden.gather(1, ends), hidden[:, 0]

    def _autocast(self, device: torch.device) -> torch.autocast:
        return torch.autocast(device.type, self.autocast, enabled=self.autocast is not None)

    def _score_in_passes(
        self, inputs: tuple[Tensor, ...], only: Part | None
    ) -> tuple[Tensor | None, ...]:
        if self.max_tokens_per_pass is None:
            return self.score(*inputs, only)
        passes = token_passes(*self._count_tokens(*inputs), self.max_tokens_per_pass)
        return in_passes(lambda *rows: self.score(*rows, only), inputs, passes)

    def _spare_states(self, number: int) -> int:
        """States to add, copies of the last, so that few numbers of states occur."""
        if self.pad_to_multiple_of == 1 or not number:
            return 0
        return -number % (8 if number <= 64 else 32)

    def count_tokens(self, tensordict: TensorDictBase) -> tuple[Tensor, Tensor]:
        """Tokens of each prompt and nodes of each trie, ``[*B]`` both, rounded up to multiples."""
        return self._count_tokens(*(tensordict.get(key) for key in self.in_keys))

    def _count_tokens(
        self, goal: Tensor, observation: Tensor, actions: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        pad = self.prompt.pad_id
        prompts = (goal != pad).sum(-1) + (observation != pad).sum(-1)
        trie = self._trie(actions.flatten(0, -3), mask.flatten(0, -2))
        prompts = prompts + self.prompt.num_literal_tokens
        nodes = trie.valid.sum(-1).view(mask.shape[:-1])
        multiple = self.pad_to_multiple_of
        return prompts + -prompts % multiple, nodes + -nodes % multiple


def _check_positive(name: str, value: int | None, otherwise: str = "") -> None:
    if value is not None and value < 1:
        raise ValueError(f"{name} ({value}) must be at least 1{otherwise}")
