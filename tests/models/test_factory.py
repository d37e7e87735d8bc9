"""Arguments of make_trunk arrive in the trunks that it makes."""

from families import make_model

from torchrl_glam.models import Trunk, load_tokenizer, make_critic, make_trunk


def test_keys_and_settings_arrive():
    tokenizer = load_tokenizer("tiny")
    options = {"normalisation": "token_mean", "max_tokens_per_pass": 7, "pad_to_multiple_of": 8}
    inputs = ["goal", "observation", "action", "mask"]
    outputs = ["log_likelihood", "action_embedding", "prompt_embedding"]
    keys = {f"{name}_key": ("nested", name) for name in (*inputs, *outputs)}
    trunk = make_trunk(make_model("t5", tokenizer), tokenizer, **options, **keys)
    assert trunk.in_keys == [("nested", name) for name in inputs]
    assert trunk.out_keys == [("nested", name) for name in outputs]
    assert trunk.max_tokens_per_pass == 7 and trunk.likelihood.normalisation == "token_mean"


def test_trunks_can_be_asked_for_parts():
    tokenizer = load_tokenizer("tiny")
    trunk = make_trunk(make_model("flan-t5", tokenizer), tokenizer)
    encoded, _ = make_critic(trunk, "encoded-action", num_actions=5)
    for one_pass, module in ((True, trunk), (False, encoded)):
        assert isinstance(module, Trunk) and module.one_pass is one_pass
