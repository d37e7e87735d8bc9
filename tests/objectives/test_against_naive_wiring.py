"""The shared trunk gives the losses of a language model inside each network of TorchRL's loss."""

import copy
import warnings

import pytest
import torch
from families import make_model
from naive_sac import PlainReader, make_naive_loss
from peft import LoraConfig, get_peft_model
from tensordict import TensorDict
from torchrl.objectives import SoftUpdate

from torchrl_glam.models import CandidateActor, CandidateCritic, load_tokenizer, make_trunk
from torchrl_glam.objectives import SACGLAMLoss

SETTINGS = {"gamma": 0.9, "alpha_init": 0.2, "target_entropy": 0.3, "tau": 0.1}
LOSSES = ("loss_actor", "loss_qvalue", "loss_alpha", "entropy")


def make_batch(rows=6):
    def state():
        mask = torch.ones(rows, 4, dtype=torch.bool)
        mask[1, 2] = mask[3, 0] = False
        actions = torch.randint(3, 9, (rows, 4, 3))
        actions[:, 1, 1:] = actions[:, 3, 2] = 0
        return {
            "goal_tokens": torch.randint(3, 90, (rows, 3)),
            "observation_tokens": torch.randint(3, 90, (rows, 6)),
            "action_tokens": actions,
            "action_mask": mask,
        }

    terminated = (torch.arange(rows) % 3 == 1).unsqueeze(-1)
    ends = {"reward": torch.rand(rows, 1), "done": terminated, "terminated": terminated}
    action = torch.ones(rows, dtype=torch.long)
    batch = {**state(), "action": action, "next": state() | ends}
    batch["steps_to_next_obs"] = torch.randint(1, 4, (rows, 1))
    return TensorDict(batch, batch_size=[rows])


@pytest.mark.parametrize("vmap", [False, True])
@pytest.mark.parametrize("lora", [False, True], ids=["all weights", "lora"])
def test_losses_are_those_of_the_naive_wiring(vmap, lora):
    tokenizer = load_tokenizer("tiny")
    # Under vmap, the CPU's fused attention refuses T5's trained position bias.
    model = make_model("flan-t5", tokenizer, attention="eager" if vmap else "sdpa")
    if lora:
        model = get_peft_model(model, LoraConfig(r=2, target_modules=["q", "v"]))
        for name, parameter in model.named_parameters():
            if "lora_B" in name:  # zeros would hide what the adapters do
                parameter.data.normal_()
    model.eval()
    trunk = make_trunk(model, tokenizer)
    critic = CandidateCritic(trunk.embedding_dim, (8,))
    loss = SACGLAMLoss(
        trunk,
        CandidateActor(),
        critic,
        num_actions=4,
        alpha_init=SETTINGS["alpha_init"],
        target_entropy=SETTINGS["target_entropy"],
    )
    loss.make_value_estimator(gamma=SETTINGS["gamma"])
    SoftUpdate(loss, tau=SETTINGS["tau"])
    batch = make_batch()
    ours = loss(batch.clone())

    model = copy.deepcopy(model)
    mlp = copy.deepcopy(critic.module.mlp)
    naive, _ = make_naive_loss(PlainReader(model, trunk.prompt), mlp, vmap=vmap, **SETTINGS)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop")  # vmap of attention
        theirs = naive(batch.clone())
    for name in LOSSES:
        torch.testing.assert_close(ours[name], theirs[name], atol=1e-4, rtol=0, msg=name)
