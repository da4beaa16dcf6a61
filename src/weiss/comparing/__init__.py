"""The paper's experiments: each a plan of runs over a recipe, shared by any number of workers.

A plan says what can be done next, given what is done (`plan`, `run_table`, `reality_check`,
`studies`). Workers claim units in a ledger and do them (`workers`, `ledger`, `units`). What lies
in the folder is put together into one summary (`study_folder`), which reports read.
"""

from weiss.comparing.folder import PLAN, open_ledger
from weiss.comparing.kinds import current_summary, plan_from, reality_check, traditional
from weiss.comparing.plan import Plan
from weiss.comparing.studies import STUDIES, make_study
from weiss.comparing.workers import carry_out, work

__all__ = [
    "PLAN",
    "STUDIES",
    "Plan",
    "carry_out",
    "current_summary",
    "make_study",
    "open_ledger",
    "plan_from",
    "reality_check",
    "traditional",
    "work",
]
