"""Contact labels as plain arrays on an episode: from forces (truth) or from motion alone (the paper's proxy).

For evaluation only: nothing that is trained ever sees one.
"""

from vhydro.labels.contact import FREE, IMPACT, SUSTAINED, ContactLabeller, fit_contact_labeller
from vhydro.labels.proxy import ProxyLabeller, fit_proxy_labeller
from vhydro.labels.runs import run_starts, without_short_runs

__all__ = [
    "FREE", "IMPACT", "SUSTAINED", "ContactLabeller", "ProxyLabeller", "fit_contact_labeller", "fit_proxy_labeller",
    "run_starts", "without_short_runs",
]  # fmt: skip
