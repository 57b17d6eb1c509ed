"""Contact labels as plain arrays on an episode: from forces (truth) or from motion alone (the paper's proxy).

For evaluation only: nothing that is trained ever sees one.
"""

from vhydro_audits.labels.contact import ContactLabeller, fit_contact_labeller
from vhydro_audits.labels.proxy import ProxyLabeller, fit_proxy_labeller
from vhydro_audits.labels.runs import without_short_runs

__all__ = ["ContactLabeller", "ProxyLabeller", "fit_contact_labeller", "fit_proxy_labeller", "without_short_runs"]
