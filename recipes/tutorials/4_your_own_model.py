"""
Your own language model
=======================

Any encoder-decoder or decoder-only model of ``transformers`` that a table in
``torchrl_glam/models/architectures.md`` has, from a folder or from the hub. A fresh Llama of two
layers stands for yours here.
"""

# %%
# A model and its tokenizer in a folder
# -------------------------------------

import tempfile

import torch
from peft import LoraConfig
from torchrl.envs import TransformedEnv
from transformers import LlamaConfig, LlamaForCausalLM

from torchrl_glam.envs import PlaygroundTextEnv
from torchrl_glam.models import (
    CandidateActor,
    check_gradients,
    load_language_model,
    load_tokenizer,
    make_critic,
    make_trunk,
    score_error,
)
from torchrl_glam.text import PromptTemplate, TokenizeText, token_lengths

torch.manual_seed(0)
folder = tempfile.mkdtemp()
tokenizer = load_tokenizer("tiny")
config = LlamaConfig(
    vocab_size=len(tokenizer),
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    pad_token_id=tokenizer.pad_token_id,
    bos_token_id=None,
    eos_token_id=tokenizer.eos_token_id,
)
LlamaForCausalLM(config).save_pretrained(folder)
tokenizer.save_pretrained(folder)

# %%
# Loading
# -------
# With LoRA a fraction of the weights is trained; ``load_in_4bit=True`` holds the rest in four bits.
# ``check_gradients`` says, before any training, whether all that is to be trained will be.

lora = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])
model, tokenizer = load_language_model(folder, lora=lora)
template = PromptTemplate("{goal}.\n{observation}\nAction:")
trunk = make_trunk(model, tokenizer, template)
check_gradients(trunk)
print(trunk)

# %%
# Is it read as it reads itself?
# ------------------------------
# ``make_trunk`` compares the trunk with the model's own forward and refuses where they differ;
# ``score_error`` looks again, on the states of your game.

game = PlaygroundTextEnv(num_envs=8, num_objects=3, sequential=False, seed=0)
lengths = token_lengths(game, tokenizer, template)
env = TransformedEnv(game, TokenizeText(tokenizer, template=template, **lengths))
states = env.reset()
error = score_error(trunk, states)
print(f"largest difference: {error:.0e} nats")

# %%
# How uneven its policy is
# ------------------------
# SAC explores by sampling, so a policy must not begin sure of itself. The entropy of yours, as a
# share of the largest possible, tells. This one prefers what has few tokens, as the log-likelihood
# is a sum over them (the paper's): another normalisation helps, or training the model on the game's
# language first.


@torch.no_grad()
def entropy(trunk):
    policy = CandidateActor().get_dist(trunk(states.clone(), only="scores"))
    return (policy.entropy() / states["action_mask"].sum(-1).log()).mean().item()


by_mean = make_trunk(model, tokenizer, template, normalisation="token_mean")
entropies = {"sum": entropy(trunk), "token_mean": entropy(by_mean)}
print(entropies)

# %%
# The critic's input
# ------------------
# A model that has no encoder has the same critics but ``"encoded-action"``.

trunk, critic = make_critic(trunk, "observation-action", num_actions=5, hidden_sizes=(64,))
values = critic(trunk(states.clone()))["action_value"]
print(tuple(values.shape))

# %%
# The recipes take the folder by name:
#
# .. code-block:: bash
#
#    python recipes/sac_glam.py model=FOLDER lora_rank=16
