"""The loss on the T5 trunk, whole and with low-rank adapters: tied weights, targets, one update."""

import copy

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tensordict import TensorDict, assert_close
from tensordict.nn import TensorDictModule
from torchrl.objectives import SoftUpdate
from transformers import T5Config, T5ForConditionalGeneration

from torchrl_glam.models import CandidateActor, CandidateCritic
from torchrl_glam.models.loading import load_tokenizer
from torchrl_glam.models.trunks.encoder_decoder import EncoderDecoderTrunk
from torchrl_glam.objectives import SACGLAMLoss, SharedTrunkOptimizer


def make_trunk(lora):
    tokenizer = load_tokenizer("tiny")
    sizes = {"d_model": 16, "d_kv": 4, "d_ff": 24, "num_heads": 4, "num_layers": 1}
    pad = tokenizer.pad_token_id
    config = T5Config(
        vocab_size=len(tokenizer), decoder_start_token_id=pad, pad_token_id=pad, **sizes
    )
    model = T5ForConditionalGeneration(config).eval()
    if lora:
        model = get_peft_model(model, LoraConfig(r=2, target_modules=["q", "v"])).eval()
        for name, parameter in model.named_parameters():
            if "lora_B" in name:  # zeros would hide what the adapters do
                parameter.data.normal_()
    return EncoderDecoderTrunk(model, tokenizer)


def make_batch(rows=4):
    def state():
        mask = torch.ones(rows, 3, dtype=torch.bool)
        mask[1, 2] = False
        return {
            "goal_tokens": torch.randint(3, 20, (rows, 3)),
            "observation_tokens": torch.randint(3, 20, (rows, 6)),
            "action_tokens": (torch.rand(rows, 17).argsort(-1)[:, :6] + 3).view(rows, 3, 2),
            "action_mask": mask,
        }

    no = torch.zeros(rows, 1, dtype=torch.bool)
    ends = {"reward": torch.rand(rows, 1), "done": no, "terminated": no}
    action = torch.zeros(rows, dtype=torch.long)
    return TensorDict({**state(), "action": action, "next": state() | ends}, batch_size=[rows])


def make_loss(trunk):
    critic = CandidateCritic(trunk.embedding_dim, (8,))
    loss = SACGLAMLoss(trunk, CandidateActor(), critic, num_actions=3)
    return loss, SoftUpdate(loss, tau=0.1)


@pytest.mark.parametrize("lora", [False, True])
def test_target_pass_equals_a_copy_that_stayed_behind(lora):
    trunk = make_trunk(lora)
    behind = copy.deepcopy(trunk)
    loss, _ = make_loss(trunk)
    state = make_batch().select(*trunk.in_keys)
    for parameter in loss.trunk_parameters():
        parameter.data.add_(torch.randn_like(parameter))
    with torch.no_grad():
        target, expected = loss._run_trunk(state, target=True), behind(state.clone())
        moved = trunk(state.clone())
    mask = state["action_mask"]
    for key in ("log_likelihood", "action_embedding"):
        torch.testing.assert_close(target[key][mask], expected[key][mask])
        assert not torch.allclose(moved[key][mask], expected[key][mask])


@pytest.mark.parametrize("lora", [False, True])
def test_an_update_moves_the_trainable_weights_of_the_policys_model(lora):
    trunk = make_trunk(lora)
    loss, updater = make_loss(trunk)
    before = {name: p.detach().clone() for name, p in trunk.named_parameters()}
    trained = sum(p.numel() for p in trunk.parameters() if p.requires_grad)
    targets = loss.target_trunk_params.values(include_nested=True, leaves_only=True)
    assert sum(target.numel() for target in targets) == trained, "frozen weights need no target"
    optimizer = SharedTrunkOptimizer(loss, max_grad_norm=1.0)
    optimizer.backward(loss(make_batch()))
    optimizer.step()
    updater.step()
    for name, parameter in trunk.named_parameters():
        moved = not torch.equal(parameter, before[name])
        assert moved == parameter.requires_grad, name


def test_a_critic_on_scores_asks_for_scores_alone(monkeypatch):
    trunk, batch = make_trunk(lora=True), make_batch()
    critic = TensorDictModule(torch.nn.Linear(3, 3), ["log_likelihood"], ["action_value"])
    loss = SACGLAMLoss(trunk, CandidateActor(), critic, num_actions=3)
    SoftUpdate(loss, tau=0.1)
    asked, score = [], trunk.score
    monkeypatch.setattr(trunk, "score", lambda *args: asked.append(args[-1]) or score(*args))
    sparing = loss(batch.clone())
    monkeypatch.setattr("torchrl_glam.objectives.sac.enough", lambda trunk, heads: None)
    assert_close(sparing, loss(batch.clone()), atol=1e-4, rtol=1e-4)
    assert asked == [*["scores"] * 3, *[None] * 3]
