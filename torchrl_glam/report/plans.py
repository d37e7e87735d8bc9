"""The charts that a run's page may have, by the columns of ``metrics.csv`` that they draw."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_FROM_0, _SHARE, _LOG, _FREE = {"limits": (0, 0)}, {"limits": (0, 1)}, {"log": True}, {}


@dataclass(frozen=True)
class Plan:
    """A chart, or several: one for each value of the pattern's group ``chart``.

    Its lines are the columns that the pattern matches, named by the group ``line``, else by the
    column. ``words`` has other words for columns and for values of ``chart``, which is None where
    it matches nothing. A name has the same style in all charts of a plan.
    """

    title: str
    about: str
    pattern: str
    options: Mapping[str, Any] = field(default_factory=lambda: _FROM_0)
    words: Mapping[str | None, str] = field(default_factory=dict)


_PLAYED = {"success": "while training", None: "while training"}
_STATES = {"plan": "a plan", "random": "random play", "policy": "its own play"}

SECTIONS: dict[str, list[Plan]] = {
    "Success": [
        Plan(
            "Success, actions sampled",
            "Share of episodes that reach their goal, in evaluations and while training.",
            r"eval/(?P<line>[^/]+)/sampled/success|success",
            _SHARE,
            _PLAYED,
        ),
        Plan(
            "Success, likeliest actions",
            "Share of the evaluations' episodes that reach their goal by the likeliest actions.",
            r"eval/(?P<line>[^/]+)/greedy/success",
            _SHARE,
        ),
        Plan(
            "Success by goal kind, {chart}",
            "Share of the episodes with goals of each kind that reach them.",
            r"(?:eval/(?P<chart>[^/]+/[^/]+)/)?success/(?P<line>.+)",
            _SHARE,
            _PLAYED,
        ),
        Plan(
            "Length of episodes",
            "Mean steps of an evaluation's episode.",
            r"eval/(?P<line>[^/]+/[^/]+)/length",
        ),
    ],
    "Values": [
        Plan(
            "Q against return",
            "In evaluations: Q-values of the actions taken less the discounted returns that "
            "followed (above 0 the critic promises too much), and the correlation of the two.",
            r"probe/q_(?P<line>error|correlation)",
        ),
        Plan(
            "Q-values in updates",
            "Means over the newest batch.",
            r"(?P<line>q_value|target_value)",
            _FREE,
        ),
        Plan(
            "Temporal-difference error",
            "Mean distance of Q-values from their targets in the newest batch.",
            r"td_error",
        ),
        Plan(
            "What values explain of returns",
            "1 is all of their variance, 0 no more than a constant would; mean over passes.",
            r"explained_variance",
            _FREE,
        ),
    ],
    "Policy": [
        Plan("Entropy", "Of the policy, in nats.", r"entropy"),
        Plan(
            "Entropy coefficient",
            "What a nat of entropy is worth, in units of the reward.",
            r"alpha",
            _LOG,
        ),
        Plan(
            "Actions on a shortest plan, states of {chart}",
            "Shares of the states in which the policy's likeliest action, and the one of the "
            "largest Q-value, lie on a shortest plan, and the probability of all that do.",
            r"probe/(?P<chart>plan|random|policy)/(?P<line>(?:policy|critic)(?:/second)?|probability)",
            _SHARE,
            _STATES,
        ),
        Plan(
            "Lead of a shortest plan's actions",
            "Mean Q-value of the actions on a shortest plan less that of the others, in states of "
            "a plan, of random play and of the policy's own play.",
            r"probe/(?P<line>plan|random|policy)/lead",
        ),
        Plan(
            "Distance from the policy that played",
            "Share of clipped ratios, and Kullback-Leibler divergence.",
            r"(?P<line>clip_fraction|kl|kl_approx)",
        ),
        Plan(
            "Ratios to the policy that played",
            "Of the probabilities of actions: mean, and largest of a pass in the mean over passes.",
            r"(?P<line>max_ratio|mean_ratio)",
            _LOG,
        ),
        Plan("Effective sample size", "Share of a pass's rows, by these ratios.", r"ESS", _SHARE),
    ],
    "Goals": [
        Plan(
            "Goal kinds: {chart}",
            "Share of each kind in goals pursued or named in hindsight since the row before, in "
            "the newest batch or in the replay buffer.",
            r"kinds/(?P<chart>[^/]+)/(?P<line>.+)",
            _SHARE,
        ),
        Plan(
            "Success of goal kinds, {chart}",
            "Mean success that the goals' sampler predicts of goals of each kind, and the share of "
            "64 episodes that reached such goals.",
            r"goals/(?P<chart>predicted|measured)/(?P<line>.+)",
            _SHARE,
        ),
        Plan(
            "Error of predicted success",
            "Mean distance of predicted from measured success, over the kinds of goals.",
            r"goals/error",
        ),
        Plan(
            "Goals named by the judge",
            "Precision and recall, compared with the social partner, since the evaluation before.",
            r"judge/(?P<line>precision|recall)",
            _SHARE,
        ),
        Plan(
            "Imagined goals",
            "Share of the episodes since the evaluation before that pursued them, and the share of "
            "these that reached them, as the judge says.",
            r"imagined/(?P<line>pursued|reached)",
            _SHARE,
        ),
    ],
    "Losses and gradients": [
        Plan("Loss: {chart}", "Mean over the newest batch.", r"loss_(?P<chart>.+)", _FREE),
        Plan(
            "Norms of gradients",
            "Before clipping, of the newest update.",
            r"grad_norm(?:/(?P<line>.+))?",
            _LOG,
        ),
        Plan(
            "Error of scores",
            "Largest distance of log-likelihoods from the language model's own, in nats.",
            r"score_error",
        ),
    ],
    "Experience": [
        Plan(
            "Share of hindsight",
            "Of the transitions in the newest batch, and of all that are stored.",
            r"hindsight_in_(?P<line>.+)",
            _SHARE,
        ),
        Plan(
            "Policy lag",
            "Updates since the policy that played the transitions.",
            r"policy_lag/(?P<line>.+)",
        ),
        Plan("Goals named", "Different goals that were named so far.", r"goals/named"),
        Plan("Goals reached", "Different goals that episodes reached so far.", r"goals/reached"),
        Plan("New goals named", "In 1,000 environment steps.", r"goals/new_per_1000_steps"),
        Plan("Transitions stored", "In the replay buffer.", r"buffer_size"),
        Plan("Episodes", "Ended since the row before.", r"episodes"),
    ],
    "Time": [
        Plan(
            "Where time went",
            "Share of the seconds since the row before; the rest went to playing, evaluations and "
            "checkpoints.",
            r"share/time/(?P<line>.+)",
            _SHARE,
        ),
        Plan("Pace", "Since the row before.", r"(?P<line>steps_per_second|updates_per_second)"),
        Plan("Seconds a call", "Mean since the row before.", r"time/(?P<line>.+)", _LOG),
        Plan("Time so far", "Since the run began.", r"seconds"),
    ],
    "Other measurements": [
        Plan("{chart}", "As in metrics.csv.", r"(?P<chart>[^/]+)(?:/(?P<line>.+))?", _FREE),
    ],
}
