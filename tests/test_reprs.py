"""What components say of themselves where they are printed: their settings."""

from torchrl_glam.models import (
    CandidateActor,
    CandidateCritic,
    ScoresOnly,
    load_language_model,
    make_trunk,
)
from torchrl_glam.objectives import SACGLAMLoss, SharedTrunkOptimizer
from torchrl_glam.replay import HindsightTransform, SegmentMultiStepTransform, SubgoalFilter


def test_trunk_and_optimizer():
    trunk = make_trunk(*load_language_model("tiny"), normalisation="token_mean")
    said = repr(trunk)
    assert said == (
        "EncoderDecoderTrunk(model=T5ForConditionalGeneration, normalisation=token_mean, "
        "max_tokens_per_pass=None, autocast=None, pad_to_multiple_of=1)"
    )
    assert said in repr(ScoresOnly(trunk))
    critic = CandidateCritic(trunk.embedding_dim, (8,))
    loss = SACGLAMLoss(trunk, CandidateActor(), critic, num_actions=5)
    optimizer = SharedTrunkOptimizer(loss, lr_heads=3e-4, max_grad_norm=10.0)
    assert repr(optimizer) == (
        "SharedTrunkOptimizer(critic: lr=0.0003, alpha: lr=0.002, trunk_actor: lr=0.0001, "
        "trunk_critic: lr=0.0001, max_grad_norm=10, separate=True)"
    )


def test_transforms():
    assert repr(HindsightTransform("none", strategy="final", goals_per_transition=2)) == (
        "HindsightTransform(relabel='none', strategy='final', goals_per_transition=2, "
        "reward_scale=(0.0, 1.0))"
    )
    assert repr(SegmentMultiStepTransform(3, 0.9)) == (
        "SegmentMultiStepTransform(n_steps=3, gamma=0.9)"
    )
    assert repr(SubgoalFilter(max)) == "SubgoalFilter(is_subgoal=<built-in function max>)"
