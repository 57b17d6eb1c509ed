"""VHyDRO: support-safe hybrid filtering, contact segments and readable laws for robots that touch things.

>>> import vhydro as vh
>>> fitted = vh.fit(vh.read("logs/"))
>>> belief = fitted.filter(vh.read("logs/")[0])
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vhydro.data import read as read
    from vhydro.episodes import Channel as Channel
    from vhydro.episodes import Episode as Episode
    from vhydro.filter import Belief as Belief
    from vhydro.filter import FilterSettings as FilterSettings
    from vhydro.filter import Stream as Stream
    from vhydro.fitted import Fitted as Fitted
    from vhydro.fitted import load as load
    from vhydro.fitted import load_stream as load_stream
    from vhydro.fitting import fit as fit
    from vhydro.laws.law import Law as Law
    from vhydro.occlusion import occlude as occlude
    from vhydro.planning import Task as Task
    from vhydro.planning import cem as cem
    from vhydro.planning import certify as certify
    from vhydro.planning import mppi as mppi
    from vhydro.views import BodyView as BodyView
    from vhydro.views import ContactView as ContactView
    from vhydro.views import MechanicsView as MechanicsView
    from vhydro.views import PlainView as PlainView

# Names and where they are; imported when they are first used, so that `import vhydro` is quick.
PUBLIC = {
    "read": "vhydro.data", "Episode": "vhydro.episodes", "Channel": "vhydro.episodes", "occlude": "vhydro.occlusion",
    "fit": "vhydro.fitting", "Fitted": "vhydro.fitted", "load": "vhydro.fitted",
    "load_stream": "vhydro.fitted",
    "Belief": "vhydro.filter", "FilterSettings": "vhydro.filter", "Stream": "vhydro.filter", "Law": "vhydro.laws.law",
    "ContactView": "vhydro.views", "MechanicsView": "vhydro.views", "BodyView": "vhydro.views",
    "PlainView": "vhydro.views", "Task": "vhydro.planning", "mppi": "vhydro.planning", "cem": "vhydro.planning",
    "certify": "vhydro.planning",
}  # fmt: skip
__all__ = [*PUBLIC]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in PUBLIC:
        raise AttributeError(f"module 'vhydro' has no attribute {name!r}; it has {', '.join(PUBLIC)}.")
    return getattr(import_module(PUBLIC[name]), name)


def __dir__() -> list[str]:
    return [*__all__]
