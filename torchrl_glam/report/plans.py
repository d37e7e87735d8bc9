"""The charts that a run's page may have, by the columns of ``metrics.csv`` that they draw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Plan:
    """A chart, or several: one for each value of the pattern's group ``chart``.

    Its lines are the columns that the pattern matches; their names are the group ``line``, else
    ``label``. Its axis includes 0 unless ``options`` say otherwise. A name has the same style in
    all charts of a plan. ``charts`` has words for some values of the group ``chart``, None where it
    matches nothing.
    """

    title: str
    about: str
    pattern: str
    label: str = ""
    options: Mapping[str, Any] = field(default_factory=lambda: {"limits": (0, 0)})
    charts: Mapping[str | None, str] = field(default_factory=dict)


_SHARE, _LOG, _FREE = {"limits": (0, 1)}, {"log": True}, {}
SECTIONS: tuple[tuple[str, tuple[Plan, ...]], ...] = (
    (
        "Success",
        (
            Plan(
                "Success, actions sampled",
                "Share of the episodes that reach their goal: of evaluations, and of those "
                "played while training since the row before.",
                r"eval/(?P<line>[^/]+)/sampled/success|success",
                "while training",
                _SHARE,
            ),
            Plan(
                "Success, likeliest actions",
                "Share of the evaluations' episodes that reach their goal when the policy takes "
                "its likeliest action.",
                r"eval/(?P<line>[^/]+)/greedy/success",
                options=_SHARE,
            ),
            Plan(
                "Success by goal kind, {chart}",
                "Share of the episodes with goals of each kind that reach them.",
                r"(?:eval/(?P<chart>[^/]+/[^/]+)/)?success/(?P<line>.+)",
                options=_SHARE,
                charts={None: "while training"},
            ),
            Plan(
                "Length of episodes",
                "Mean steps of an evaluation's episode.",
                r"eval/(?P<line>[^/]+/[^/]+)/length",
            ),
        ),
    ),
    (
        "Values",
        (
            Plan(
                "Q against return",
                "In evaluations: Q-values of the actions taken less the discounted returns that "
                "followed (0 is right, above 0 the critic promises too much), and the "
                "correlation of the two.",
                r"probe/q_(?P<line>error|correlation)",
            ),
            Plan(
                "Q-values in updates",
                "Means over the newest batch.",
                r"(?P<line>q_value|target_value)",
                options=_FREE,
            ),
            Plan(
                "Temporal-difference error",
                "Mean distance of Q-values from their targets in the newest batch.",
                r"td_error",
                "TD error",
            ),
            Plan(
                "What values explain of returns",
                "1 is all of their variance, 0 no more than a constant would.",
                r"explained_variance",
                "explained variance",
                _FREE,
            ),
        ),
    ),
    (
        "Policy",
        (
            Plan("Entropy", "Of the policy, in nats.", r"entropy", "entropy"),
            Plan(
                "Entropy coefficient",
                "What a nat of entropy is worth, in units of the reward.",
                r"alpha",
                "coefficient",
                _LOG,
            ),
            Plan(
                "Actions on a shortest plan, states of {chart}",
                "Shares of the states in which the policy's likeliest action, and the one of "
                "the largest Q-value, lie on a shortest plan, and the probability of all that "
                "do.",
                r"probe/(?P<chart>plan|random|policy)/(?P<line>policy|critic|probability"
                r"|(?:policy|critic)/second)",
                options=_SHARE,
                charts={"plan": "a plan", "random": "random play", "policy": "its own play"},
            ),
            Plan(
                "Lead of a shortest plan's actions",
                "Mean Q-value of the actions on a shortest plan less that of the others, in "
                "states of a plan, of random play and of the policy's own play.",
                r"probe/(?P<line>plan|random|policy)/lead",
            ),
            Plan(
                "Distance from the policy that played",
                "Share of clipped ratios, and Kullback-Leibler divergence.",
                r"(?P<line>clip_fraction|kl|kl_approx)",
            ),
            Plan(
                "Ratios to the policy that played",
                "Of the probabilities of actions.",
                r"(?P<line>max_ratio|mean_ratio)",
                options=_LOG,
            ),
        ),
    ),
    (
        "Losses and gradients",
        (
            Plan(
                "Loss: {chart}",
                "Mean over the newest batch.",
                r"loss_(?P<chart>.+)",
                "loss",
                _FREE,
            ),
            Plan(
                "Norms of gradients",
                "Before clipping, of the newest update.",
                r"grad_norm(?:/(?P<line>.+))?",
                "all",
                _LOG,
            ),
            Plan(
                "Error of scores",
                "Largest distance of log-likelihoods from the language model's own, in nats.",
                r"score_error",
                "error",
            ),
        ),
    ),
    (
        "Experience",
        (
            Plan(
                "Share of hindsight",
                "Of the transitions in the newest batch, and of all that are stored.",
                r"hindsight_in_(?P<line>.+)",
                options=_SHARE,
            ),
            Plan(
                "Policy lag",
                "Updates since the policy that played the transitions.",
                r"policy_lag/(?P<line>.+)",
            ),
            Plan(
                "Goals named",
                "Different goals that were reached so far, whichever was pursued.",
                r"goals/named",
                "goals",
            ),
            Plan(
                "New goals named",
                "In 1,000 environment steps.",
                r"goals/new_per_1000_steps",
                "goals",
            ),
            Plan("Transitions stored", "In the replay buffer.", r"buffer_size", "transitions"),
            Plan("Episodes", "Ended since the row before.", r"episodes", "episodes"),
        ),
    ),
    (
        "Time",
        (
            Plan(
                "Where time went",
                "Share of the seconds since the row before; what is left of 1 went to playing, "
                "evaluations and checkpoints.",
                r"share/time/(?P<line>.+)",
                options=_SHARE,
            ),
            Plan("Pace", "Since the row before.", r"(?P<line>steps_per_second|updates_per_second)"),
            Plan(
                "Seconds a call",
                "Mean since the row before.",
                r"time/(?P<line>.+)",
                options=_LOG,
            ),
            Plan("Time so far", "Since the run began.", r"seconds", "seconds"),
        ),
    ),
    (
        "Other measurements",
        (
            Plan(
                "{chart}",
                "As in metrics.csv.",
                r"(?P<chart>[^/]+)(?:/(?P<line>.+))?",
                "value",
                _FREE,
            ),
        ),
    ),
)
