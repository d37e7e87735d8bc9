"""Discrete SAC as TorchRL's loss has it: a whole language model inside each network.

The wiring that `SACGLAMLoss` replaces, as an independent reference for its values and its cost:
candidates are scored by the model's own forward, in rows of their own, and TorchRL's
`DiscreteSACLoss` does the rest.
"""

import torch
from tensordict import TensorDict
from tensordict.nn import (
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictSequential,
)
from torch import nn
from torchrl.modules import MaskedCategorical
from torchrl.objectives import DiscreteSACLoss, SoftUpdate

STATE_KEYS = ["goal_tokens", "observation_tokens", "action_tokens", "action_mask"]


class PlainReader(nn.Module):
    """Log-likelihood and last hidden state of every candidate, by an encoder-decoder's forward."""

    def __init__(self, model, prompt):
        super().__init__()
        self.model = model
        self.__dict__["prompt"] = prompt  # under vmap its buffers would have a critic dimension

    def forward(self, goal, observation, actions, mask):
        prompt, prompt_mask = self.prompt(goal, observation)
        rows, number = actions.shape[:2]
        tokens = actions.long().flatten(0, 1)
        tokens = tokens[:, : int((tokens != self.prompt.pad_id).sum(-1).max())]
        lengths = (tokens != self.prompt.pad_id).sum(-1)
        encoder = self.model.get_encoder()
        encoded = encoder(input_ids=prompt, attention_mask=prompt_mask).last_hidden_state
        start = torch.full_like(tokens[:, :1], self.model.config.decoder_start_token_id)
        out = self.model(
            encoder_outputs=(encoded.repeat_interleave(number, 0),),
            attention_mask=prompt_mask.repeat_interleave(number, 0),
            decoder_input_ids=torch.cat([start, tokens], 1),
            output_hidden_states=True,
            use_cache=False,
        )
        log_prob = out.logits[:, :-1].float().log_softmax(-1)
        log_prob = log_prob.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
        score = (log_prob * (tokens != self.prompt.pad_id)).sum(-1).view(rows, number)
        hidden = out.decoder_hidden_states[-1]
        last = lengths.view(-1, 1, 1).expand(-1, 1, hidden.shape[-1])
        return score.masked_fill(~mask, 0), hidden.gather(1, last).view(rows, number, -1)


def make_naive_loss(reader, mlp, *, gamma, alpha_init, target_entropy, tau, vmap=True):
    """The loss and its target updater; actor and critic start with the reader's weights.

    The loss copies the critic's language model, re-samples its weights and lets frozen ones
    require gradient: both are undone here, as a user of that wiring would have to.
    """
    actor = ProbabilisticTensorDictSequential(
        TensorDictModule(reader, STATE_KEYS, ["logits", "_"]),
        ProbabilisticTensorDictModule(
            {"logits": "logits", "mask": "action_mask"},
            ["action"],
            distribution_class=MaskedCategorical,
            distribution_kwargs={"neg_inf": -1e9},
        ),
    )
    critic = TensorDictSequential(
        TensorDictModule(reader, STATE_KEYS, ["_", "hidden"]),
        TensorDictModule(nn.Sequential(mlp, nn.Flatten(-2)), ["hidden"], ["action_value"]),
    )
    trained = {name: p.requires_grad for name, p in critic.named_parameters(remove_duplicate=False)}
    loss = DiscreteSACLoss(
        actor,
        critic,
        action_space="categorical",
        num_qvalue_nets=1,
        loss_function="l2",
        alpha_init=alpha_init,
        target_entropy=target_entropy,
        deactivate_vmap=not vmap,
    )
    values = TensorDict.from_module(critic).data.unsqueeze(0)
    loss.qvalue_network_params.data.update_(values)
    loss._modules["target_qvalue_network_params"].data.update_(values)
    for key, parameter in loss.qvalue_network_params.items(True, True):
        if isinstance(parameter, nn.Parameter):
            parameter.requires_grad_(trained[".".join(key)])
    loss.make_value_estimator(gamma=gamma)
    return loss, SoftUpdate(loss, tau=tau)
