"""Goals that an agent chooses itself, by where it makes progress, and a judge that names them.

An environment takes a sampler as ``goal_sampler``, and the sampler is told of the episodes that
ended. Source: "MAGELLAN: Metacognitive predictions of learning progress guide autotelic LLM agents
in large goal spaces", Gaven et al., 2025.

Examples:
    >>> from torchrl_glam.envs import GoalSpace, PlaygroundTextEnv
    >>> goals = GoalSpace("train", sequential=False, impossible=0.8)
    >>> sampler = KindProgressGoals(goals.texts, kinds=goals.kind_ids)
    >>> env = PlaygroundTextEnv(4, 3, sequential=False, impossible=0.8, goal_sampler=sampler)
    >>> steps = env.rollout(40, break_when_any_done=False)
    >>> ended = steps["next", "done"].squeeze(-1)
    >>> reached = steps["next", "reward"].squeeze(-1)[ended] > 0
    >>> sampler.update(steps["goal_id"][ended], reached)
"""

from torchrl_glam.goals.imagined import ImaginedGoals, imagine_goals
from torchrl_glam.goals.judge import WordJudge
from torchrl_glam.goals.learned import LearnedProgressGoals, prompt_tokens, state_embeddings
from torchrl_glam.goals.progress import KindProgressGoals, ProgressGoals
from torchrl_glam.goals.sampler import GoalSampler, UniformGoals

__all__ = [
    "GoalSampler",
    "ImaginedGoals",
    "KindProgressGoals",
    "LearnedProgressGoals",
    "ProgressGoals",
    "UniformGoals",
    "WordJudge",
    "imagine_goals",
    "prompt_tokens",
    "state_embeddings",
]
