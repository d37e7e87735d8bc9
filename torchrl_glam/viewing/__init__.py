"""Looking at agents: success with intervals, episodes as a page, and play by hand."""

from torchrl_glam._extras import needs

with needs("recipes", "Viewing an agent"):
    from torchrl_glam.viewing.figures import (
        format_results,
        measure,
        plot_results,
        pool,
        write_results,
    )
    from torchrl_glam.viewing.games import choose_game, make_game, name_apart, open_agent, tokenize
    from torchrl_glam.viewing.page import write_page
    from torchrl_glam.viewing.play import nearest_goals, play
    from torchrl_glam.viewing.recording import record

__all__ = [
    "choose_game",
    "format_results",
    "make_game",
    "measure",
    "name_apart",
    "nearest_goals",
    "open_agent",
    "play",
    "plot_results",
    "pool",
    "record",
    "tokenize",
    "write_page",
    "write_results",
]
