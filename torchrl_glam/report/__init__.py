"""The page of a run: ``report.html``, made without torch and opened without a network.

Every run writes its own; ``make_page(read_run(folder))`` makes that of any run's folder again.
"""

from torchrl_glam._extras import needs

with needs("recipes", "A report"):
    from torchrl_glam.report.charts import Chart, Line
    from torchrl_glam.report.page import make_page
    from torchrl_glam.report.run import Run, read_run

__all__ = ["Chart", "Line", "Run", "make_page", "read_run"]
