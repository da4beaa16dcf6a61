"""The paper's experiments: each a plan of runs over a recipe, shared by any number of workers.

A plan says what can be done next, given what is done (`plan`, `run_table`, `reality_check`,
`studies`). Workers claim units in a ledger and do them (`workers`, `ledger`, `units`). What lies
in the folder is put together into one summary (`study_folder`), which reports read.
"""

from weiss.protocols.kinds import current_summary, plan_from, reality_check, traditional
from weiss.protocols.plan import Plan
from weiss.protocols.studies import STUDIES, make_study
from weiss.protocols.study_folder import PLAN, open_ledger
from weiss.protocols.workers import carry_out, work

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
