"""Views: what a model sees of a raw log. Four kinds; `auto` chooses by what the log shows, and says why."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from vhydro.episodes import Episode
from vhydro.usage import UsageError, did_you_mean, nearest
from vhydro.views.body import BodyView, body_view
from vhydro.views.contact import ContactView, contact_view
from vhydro.views.mechanics import MechanicsView, mechanics_view
from vhydro.views.plain import PlainView, plain_view
from vhydro.views.view import View, as_json, as_tuples

__all__ = [
    "BodyView", "Choice", "ContactView", "MechanicsView", "PlainView", "View", "as_json", "choose_view",
    "view_from_json", "view_of",
]  # fmt: skip

AnyView = ContactView | MechanicsView | BodyView | PlainView
KINDS = {view.kind: view for view in (ContactView, MechanicsView, BodyView, PlainView)}
FINDERS = {"contact": contact_view, "mechanics": mechanics_view, "body": body_view, "plain": plain_view}


class Choice(NamedTuple):
    """A view, and why it was taken."""

    view: AnyView
    why: str


def choose_view(episodes: Sequence[Episode]) -> Choice:
    """The first view that the logs have everything for: contact, mechanics, body, plain."""
    reasons = {
        "contact": "the log shows a hand and things it may touch",
        "mechanics": "the log shows a force for every position",
        "body": "the log shows one body and no inputs",
        "plain": "the log shows neither a hand with things to touch, nor a force for every position, nor one free body",
    }
    for kind, why in reasons.items():
        if kind == "body" and episodes[0].inputs:
            continue
        try:
            return Choice(FINDERS[kind](episodes), why)
        except ValueError:
            if kind == "plain":
                raise
    raise AssertionError("unreachable: a plain view exists or says why not")


def view_of(kind: str, episodes: Sequence[Episode]) -> AnyView:
    """The view of this kind that fits the logs; an error says what it lacks."""
    if kind not in FINDERS:
        near = f" {did_you_mean(kind, FINDERS)}" if nearest(kind, FINDERS) else ""
        raise UsageError(
            f"view is {kind!r}; expected auto, {', '.join(FINDERS)}, or a view such as {_examples()}.{near}"
        )
    return FINDERS[kind](episodes)


def _examples() -> str:
    return ContactView.example


def view_from_json(record: dict[str, Any]) -> AnyView:
    """The view that `as_json` wrote."""
    fields = {k: v for k, v in record.items() if k != "kind"} if isinstance(record, dict) else {}
    kind = KINDS.get(record.get("kind", "")) if isinstance(record, dict) else None
    try:
        if kind is None:
            raise TypeError(f"no kind of view among {', '.join(KINDS)}")
        return kind(**as_tuples(fields))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"the view of a model is {record!r:.120} ({error}); expected what `Fitted.save` writes."
        ) from error
