"""Laws of every form in files: JSON, read back as what it was."""

import json
from pathlib import Path

from vhydro.laws.bounces import FORMAT as IMPACTS
from vhydro.laws.bounces import ImpactLaw, bounce_of
from vhydro.laws.lagrange_law import FORMAT as EQUATIONS
from vhydro.laws.lagrange_law import AnyLaw, equations_document, equations_of
from vhydro.laws.law import Law, law_document, law_of
from vhydro.printable import printable_json


def any_document(law: AnyLaw) -> dict:
    """A law of flight, of contacts, or of both as JSON can hold it."""
    return law_document(law) if isinstance(law, Law) else equations_document(law)


def any_law_of(document: dict) -> AnyLaw:
    """The law of either form that was written down."""
    return equations_of(document) if document.get("format") == EQUATIONS else law_of(document)


def impacts_document(law: ImpactLaw) -> dict:
    """A law with impacts as JSON can hold it."""
    bounces = [vars(b) | {"restitution": [*b.restitution], "place": [*b.place]} for b in law.bounces]
    parts = {"flight": any_document(law.flight), "bounces": bounces, "of_points": law.of_points}
    return {"format": IMPACTS} | parts


def impacts_of(document: dict) -> ImpactLaw:
    """The law with impacts that `impacts_document` wrote down."""
    law = ImpactLaw(
        any_law_of(document["flight"]), tuple(map(bounce_of, document["bounces"])), bool(document["of_points"])
    )
    for b in law.bounces:
        if b.side not in ("below", "above") or not 0 <= b.axis < law.positions:
            raise ValueError(f"a surface at the {b.side!r} of position {b.axis}; the law has {law.positions}")
        if b.other is not None and (b.other == b.axis or b.other not in range(law.positions)):
            raise ValueError(f"an impact of positions {b.axis} and {b.other}; the law has {law.positions}")
    return law


def law_text(law: AnyLaw | ImpactLaw) -> str:
    """A law of any form as the text of its file."""
    document = impacts_document(law) if isinstance(law, ImpactLaw) else any_document(law)
    return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def load_law(path: str | Path) -> AnyLaw | ImpactLaw:
    """The law that its `save` wrote."""
    try:
        document = printable_json(json.loads(Path(path).read_text("utf-8")))
        return impacts_of(document) if document.get("format") == IMPACTS else any_law_of(document)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise ValueError(
            f"{path} does not hold a law ({type(error).__name__}: {error}); expected the JSON that `Law.save` "
            "writes. Save the law again."
        ) from error
