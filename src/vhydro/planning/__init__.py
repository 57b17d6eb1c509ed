"""Plans whose risk is proven, and refused where it cannot be."""

from vhydro.planning.contact_dynamics import ContactDynamics, contact_dynamics
from vhydro.planning.dynamics import HybridDynamics, hybrid_dynamics
from vhydro.planning.law_dynamics import LawDynamics, law_dynamics
from vhydro.planning.loop import Controller, Decision
from vhydro.planning.planners import Plan, Planner, cem, mppi
from vhydro.planning.proof import Proof, certify
from vhydro.planning.rollout import rollout
from vhydro.planning.shift import Record, conformal, fitted, known
from vhydro.planning.task import Task

__all__ = [
    "ContactDynamics",
    "Controller",
    "Decision",
    "HybridDynamics",
    "LawDynamics",
    "Plan",
    "Planner",
    "Proof",
    "Record",
    "Task",
    "cem",
    "certify",
    "conformal",
    "contact_dynamics",
    "fitted",
    "hybrid_dynamics",
    "known",
    "law_dynamics",
    "mppi",
    "rollout",
]
