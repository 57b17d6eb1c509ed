"""Which view a user means: by its name, or by naming channels on the command line."""

from dataclasses import dataclass

from vhydro.views import AnyView, BodyView, ContactView, MechanicsView, PlainView
from vhydro.views.view import AXES


@dataclass(frozen=True)
class Naming:
    """What channels and inputs of a log are. Whatever is not named is found by its usual name or its unit."""

    view: str = "auto"
    """contact, mechanics, body, plain, or auto: the first of these that the log has everything for."""
    hand: tuple[str, ...] = ()
    """Channels of the hand's place along x, y and z, for the contact view."""
    body: tuple[str, ...] = ()
    """Bodies and the channels of their places, such as cup=cup_x,cup_y,cup_z; for the contact or the body view."""
    positions: tuple[str, ...] = ()
    """Channels that are positions or angles, for the mechanics view."""
    forces: tuple[str, ...] = ()
    """Inputs that are forces or torques, one for each position in order; `-` where there is none."""
    carried_by: tuple[str, ...] = ()
    """Inputs that are velocities of the frame a position is measured in, one for each; `-` where there is none."""
    friction: tuple[float, ...] = ()
    """Known friction along each position in N s/m, where no input is a force; nan where it is to be estimated."""
    masses: tuple[float, ...] = ()
    """Known mass along each position in kg, or inertia in kg m²; nan where it is to be estimated."""
    channels: tuple[str, ...] = ()
    """Channels as they are, for the plain view."""
    inputs: tuple[str, ...] = ()
    """Inputs as they are, for the plain view."""

    def chosen(self) -> str | AnyView:
        """The view that was named, or the name of a kind of view."""
        named = {
            "contact": self.hand, "mechanics": self.positions, "plain": self.channels,
            "body": self.body if not self.hand else (),
        }  # fmt: skip
        meant = [kind for kind, names in named.items() if names]
        if self.view != "auto" and meant not in ([], [self.view]):
            raise ValueError(f"--view {self.view} with channels of the {meant[0]} view; expected those of one view.")
        if len(meant) > 1:
            raise ValueError(f"channels of the {' and the '.join(meant)} view were named; expected those of one view.")
        if not meant:
            return self.view
        return self._built(meant[0])

    def _built(self, kind: str) -> AnyView:
        if kind == "contact":
            return ContactView(self.hand, dict(map(_body, self.body)))
        if kind == "mechanics":
            return MechanicsView(self.positions, self.forces, self.carried_by, self.friction, self.masses)
        if kind == "plain":
            return PlainView(self.channels, self.inputs)
        if len(self.body) != 1:
            raise ValueError(f"{len(self.body)} bodies without a hand; expected one, or --hand with its channels.")
        name, places = _body(self.body[0])
        return BodyView(places[:3], places[3:], name)


def _body(text: str) -> tuple[str, tuple[str, ...]]:
    name, _, channels = text.partition("=")
    if not name or not channels:
        raise ValueError(f"--body {text}; expected a name and its channels, such as cup=cup_x,cup_y,cup_z.")
    places = tuple(channels.split(","))
    if len(places) == 1:  # a prefix
        places = tuple(f"{places[0]}{a}" for a in AXES)
    return name, places
