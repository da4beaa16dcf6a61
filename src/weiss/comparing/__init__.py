"""The paper's experiments: each a plan of runs over a recipe, done by any number of workers.

- what is compared: `plan`, `run_table` (traditional protocol), `reality_check`, `studies`,
  `contenders` (the option --losses), `search_spaces`; `breakdown` and `costs` measure losses;
- how it is done: `units` (a run or a measurement), `driver` (asks the plan), `executor` (does
  units): `local` with its `worker`, or `ray_cluster`; how much it is: `forecast`;
- what lies on disk: `folder` (the plan), `summary` (summary.json, which reports read).
"""

from weiss.comparing.driver import carry_out
from weiss.comparing.folder import PLAN
from weiss.comparing.forecast import Forecast, forecast
from weiss.comparing.plan import Plan
from weiss.comparing.reality_check import reality_check
from weiss.comparing.run_table import traditional
from weiss.comparing.studies import STUDIES, make_study
from weiss.comparing.summary import current_summary

__all__ = [
    "PLAN",
    "STUDIES",
    "Forecast",
    "Plan",
    "carry_out",
    "current_summary",
    "forecast",
    "make_study",
    "reality_check",
    "traditional",
]
