"""Laws: for every contact mode, a short port-Hamiltonian equation a person can read, with its constants measured."""

from vhydro.laws.bounces import ImpactLaw
from vhydro.laws.chain import ChainConfig, Chained, chain
from vhydro.laws.constants import Constant, constants, table
from vhydro.laws.directions import by_direction
from vhydro.laws.estimate import ShootingConfig
from vhydro.laws.files import load_law
from vhydro.laws.force_left import Tried, chosen_by_halves, force_left, halves, motion
from vhydro.laws.impacts import impact_law
from vhydro.laws.lagrange import LagrangeConfig
from vhydro.laws.lagrange_law import AnyLaw, LagrangeLaw
from vhydro.laws.law import Law, Number
from vhydro.laws.mechanics import recorded
from vhydro.laws.problem import Problem, candidates
from vhydro.laws.recording import Recording
from vhydro.laws.recover import LawsConfig, recover
from vhydro.laws.toss_model import toss_model
from vhydro.laws.tosses import corner_heights, impact_constants, toss_law
from vhydro.laws.writing import latex, text

__all__ = [
    "AnyLaw",
    "ChainConfig",
    "Chained",
    "Constant",
    "ImpactLaw",
    "LagrangeConfig",
    "LagrangeLaw",
    "Law",
    "LawsConfig",
    "Number",
    "Problem",
    "Recording",
    "ShootingConfig",
    "Tried",
    "by_direction",
    "candidates",
    "chain",
    "chosen_by_halves",
    "constants",
    "corner_heights",
    "force_left",
    "halves",
    "impact_constants",
    "impact_law",
    "latex",
    "load_law",
    "motion",
    "recorded",
    "recover",
    "table",
    "text",
    "toss_law",
    "toss_model",
]
