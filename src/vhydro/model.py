"""The hybrid model: a mode that switches, a state that flows within it, sensors that see part of it.

Every function takes one particle, or many along last axes (see `small`); an action is one for all of them, or has
particle axes that broadcast with theirs.
"""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from vhydro.calibration import Calibration
from vhydro.emission import Emission, LinearEmission, NetworkEmission, dtype_of
from vhydro.flow import Flow, LinearFlow, PortHamiltonianFlow, Reset
from vhydro.gap import GapDrive
from vhydro.gaussian import factor_of
from vhydro.library import Library
from vhydro.network import Network, network
from vhydro.small import beside, log_softmax, matvec, over, pick


class Branches(eqx.Module):
    """A law over the next (mode, z): `Σ_s p_s N(mean_s, scale_s)`. Carrier and guide are both of this form.

    A scale shared by all particles has particle axes of length one.
    """

    log_mode: Float[Array, "modes *particles"]
    mean: Float[Array, "modes latent *particles"]
    scale: Float[Array, "modes latent ..."]


class ModeKernel(eqx.Module):
    """`π(s' | s, z, a)`: a transition matrix plus a small function of (z, a); forbidden moves have probability 0."""

    logits: Float[Array, "modes modes"]
    drive: Network | GapDrive | None  # (z, a) -> one logit per next mode
    feasible: Bool[Array, "modes modes"]

    def log_probability(
        self,
        mode: Int[Array, "*particles"],
        z: Float[Array, "latent *particles"],
        action: Float[Array, "inputs ..."],
    ) -> Float[Array, "modes *particles"]:
        """The log probability of every next mode."""
        axes = z.ndim - 1
        allowed = jnp.where(self.feasible, self.logits, -jnp.inf)
        if self.drive is None:  # normalised once for all particles, each only looks up its row
            chosen = pick(over(jax.nn.log_softmax(allowed, axis=-1), axes), mode)
            return jnp.broadcast_to(chosen, (chosen.shape[0], *mode.shape))
        inputs = jnp.concatenate([z, jnp.broadcast_to(beside(action, axes), (action.shape[0], *z.shape[1:]))])
        return log_softmax(pick(over(allowed, axes), mode) + self.drive(inputs))


class HybridModel(eqx.Module):
    """Modes, flow, noise, sensors and where it all starts; units of the log are kept in `shift` and the scales."""

    kernel: ModeKernel
    flow: Flow
    reset: Reset | None
    log_noise: Float[Array, "modes latent"]
    emission: Emission
    start_log_mode: Float[Array, "modes"]
    start_mean: Float[Array, "modes latent"]
    start_log_scale: Float[Array, "modes latent"]
    shift: Float[Array, "channels"]  # standardised = (raw − shift) / scale; from the training split
    scale: Float[Array, "channels"]
    action_scale: Float[Array, "inputs"]
    noise_floor: float = eqx.field(static=True)
    channels: tuple[str, ...] = eqx.field(static=True)
    calibration: Calibration | None = None  # of the belief's intervals; see `intervals`
    noise_lower: Float[Array, "modes latent latent"] | None = None  # L of `Σ = L D² Lᵀ`, D the noise; see `noise_scale`
    outliers: Float[Array, "channels"] | None = None  # how surprising a reading of each channel may be; see `faults`
    roughness: Float[Array, "modes latent inputs"] | None = None  # what inputs add to the noise; see `noise_under`

    @property
    def modes(self) -> int:
        return self.log_noise.shape[0]

    @property
    def latent(self) -> int:
        return self.log_noise.shape[1]

    @property
    def inputs(self) -> int:
        return self.action_scale.shape[0]

    @property
    def dtype(self) -> np.dtype:
        return self.log_noise.dtype

    @property
    def noise(self) -> Float[Array, "modes latent"]:
        return self.noise_floor + jnp.exp(self.log_noise)

    @property
    def noise_scale(self) -> Float[Array, "modes latent ..."]:
        """The transition noise of every mode: standard deviations, or the factors of full covariances."""
        return self.noise if self.noise_lower is None else factor_of(self.noise, self.noise_lower)

    def noise_under(self, action: Float[Array, "inputs ..."]) -> Float[Array, "modes latent ..."]:
        """The transition noise while an action acts: with roughness r its variance is `σ² + Σ (r a)²`.

        What is dragged or pushed moves roughly, in proportion to what moves it.
        """
        if self.roughness is None:
            return over(self.noise_scale, action.ndim - 1)
        return jnp.sqrt(over(self.noise**2, action.ndim - 1) + matvec(self.roughness**2, action**2))

    @property
    def start_scale(self) -> Float[Array, "modes latent"]:
        return self.noise_floor + jnp.exp(self.start_log_scale)

    def start(self) -> Branches:
        """The law of (mode, z) before anything is seen."""
        scale = self.start_scale
        if self.noise_lower is not None:  # of one shape with the transition's
            scale = scale[..., None] * jnp.eye(self.latent, dtype=self.dtype)
        return Branches(jax.nn.log_softmax(self.start_log_mode), self.start_mean, scale)

    def next_means(
        self,
        mode: Int[Array, "*particles"],
        z: Float[Array, "latent *particles"],
        action: Float[Array, "inputs ..."],
        dt: Float[Array, ""],
    ) -> Float[Array, "modes latent *particles"]:
        """Where every next mode takes z."""
        if self.reset is None and isinstance(self.flow, LinearFlow):
            return self.flow.shared_step(z, action)
        starts = jnp.broadcast_to(z, (self.modes, *z.shape)) if self.reset is None else self.reset.starts(mode, z)
        return self.flow.step(starts, action, dt)

    def transition(
        self,
        mode: Int[Array, "*particles"],
        z: Float[Array, "latent *particles"],
        action: Float[Array, "inputs ..."],
        dt: Float[Array, ""],
    ) -> Branches:
        """The carrier `P(s', z' | s, z, a)`. Paper: Sec. 2."""
        log_mode = self.kernel.log_probability(mode, z, action)
        scale = over(self.noise_under(action), z.ndim - action.ndim)
        return Branches(log_mode, self.next_means(mode, z, action, dt), scale)

    def validate(self) -> "HybridModel":
        """This model, if every parameter is finite, every mode can go somewhere and the sensors read this state."""
        refuse_not_finite(self)
        rows = np.asarray(self.kernel.feasible).any(-1)
        if not rows.all():
            raise ValueError(
                f"mode {int(np.argmin(rows))} has no feasible next mode; allow at least one (usually itself)."
            )
        self._refuse_unfit_parts()
        self._refuse_unfit_emission()
        return self

    def _refuse_unfit_parts(self) -> None:
        """Raises where parts are of other sizes than the model: one row would be spread over all, without a word."""
        modes, latent, inputs, width = self.modes, self.latent, self.inputs, len(self.channels)
        sizes = {
            "kernel.logits": (self.kernel.logits, (modes, modes)),
            "kernel.feasible": (self.kernel.feasible, (modes, modes)),
            "flow.port": (self.flow.port, (modes, latent, inputs)),
            "start_log_mode": (self.start_log_mode, (modes,)),
            "start_mean": (self.start_mean, (modes, latent)),
            "start_log_scale": (self.start_log_scale, (modes, latent)),
            "shift": (self.shift, (width,)),
            "scale": (self.scale, (width,)),
        }
        for name, (array, shape) in sizes.items():
            if array.shape != shape:
                raise ValueError(f"{name} has the shape {array.shape}; expected {shape}, of {width} named channels.")
        if self.emission.channels != width:
            raise ValueError(f"the emission has {self.emission.channels} channels; expected {width}, as are named.")
        if len(set(self.channels)) != width:
            twice = sorted({n for n in self.channels if self.channels.count(n) > 1})
            raise ValueError(f"channel names repeat: {twice[:6]}; each needs its own.")
        if self.roughness is not None and self.noise_lower is not None:
            raise ValueError("roughness goes with noise of one deviation a coordinate; leave it or the covariance out.")
        if self.reset is not None and self.reset.raw.shape != (modes, modes, len(self.reset.momenta)):
            raise ValueError(f"reset.raw has the shape {self.reset.raw.shape}; expected one factor for each two modes.")

    def _refuse_unfit_emission(self) -> None:
        emission = self.emission
        if emission.latent != self.latent:
            raise ValueError(
                f"the emission reads {emission.latent} coordinates, the flow moves {self.latent}; expected one number."
            )
        if emission.raw_units and ((np.asarray(self.shift) != 0).any() or (np.asarray(self.scale) != 1).any()):
            raise ValueError(
                f"shift is {np.asarray(self.shift)} and scale is {np.asarray(self.scale)}; expected 0 and 1, for a "
                f"{type(emission).__name__} reads its channels in units of the log. Leave both out."
            )


def refuse_not_finite(module: eqx.Module) -> None:
    """Raises if a parameter of a model or a proposal is not finite."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(eqx.filter(module, eqx.is_inexact_array)):
        if not np.isfinite(np.asarray(leaf)).all():
            raise ValueError(
                f"parameter {jax.tree_util.keystr(path)} holds a non-finite value; every parameter must be finite. "
                "Use the last good checkpoint, or lower the learning rate."
            )


def _of_shape(value, shape: tuple[int, ...], what: str) -> np.ndarray:
    """The value broadcast to a shape."""
    array = np.asarray(value, np.float64)
    try:
        return np.broadcast_to(array, shape)
    except ValueError:
        raise ValueError(f"{what} has shape {array.shape}; expected {shape}, or one that broadcasts to it.") from None


def _above(value: np.ndarray, floor: float, what: str) -> np.ndarray:
    if not (value > floor).all():
        raise ValueError(
            f"{what} is {value.min()}; expected more than {f'the floor {floor}' if floor else '0: positive'}."
        )
    return value


def _deviations(noise, shape: tuple[int, ...], what: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Standard deviations as they are, or D and L of full covariances `L D² Lᵀ`: those have one axis more."""
    given, size = np.asarray(noise, np.float64), shape[-1]
    if given.ndim <= len(shape):
        return given, None
    if given.shape != (*shape, size):
        raise ValueError(f"{what} has shape {given.shape}; expected {shape}, or covariances {(*shape, size)}.")
    values = np.linalg.eigvalsh((given + np.swapaxes(given, -1, -2)) / 2)
    skewness = np.abs(given - np.swapaxes(given, -1, -2)).max()
    if not values.min() > 0 or skewness > 1e-6 * np.abs(given).max():
        raise ValueError(
            f"the covariance {what} has least eigenvalue {values.min():.3g} and asymmetry {skewness:.3g}; expected it "
            "symmetric and positive definite. Add a little to its diagonal, or give standard deviations."
        )
    factor = np.linalg.cholesky(given)
    deviation = np.diagonal(factor, axis1=-2, axis2=-1)
    return deviation, factor / deviation[..., None, :] - np.eye(size)


def _positive(value: int, what: str) -> None:
    if value < 1:
        raise ValueError(f"{what} is {value}; expected at least 1.")


def mode_kernel(
    modes: int,
    *,
    stay: float = 0.9,
    feasible=None,
    drive: Network | GapDrive | None = None,
    dtype=jnp.float32,
) -> ModeKernel:
    """A kernel that stays in its mode with probability `stay` before anything is learned."""
    _positive(modes, "the number of modes")
    if not 0 < stay < 1:
        raise ValueError(f"stay is {stay}; expected a probability strictly between 0 and 1.")
    other = (1 - stay) / max(modes - 1, 1)
    table = np.where(np.eye(modes, dtype=bool), stay, other)
    allowed = np.ones((modes, modes), bool) if feasible is None else np.asarray(feasible, bool)
    if allowed.shape != (modes, modes):
        raise ValueError(f"feasible has shape {allowed.shape}; expected ({modes}, {modes}): rows are where from.")
    return ModeKernel(jnp.asarray(np.log(table), dtype), drive, jnp.asarray(allowed))


def port_hamiltonian(
    modes: int,
    latent: int,
    inputs: int,
    library: Library,
    *,
    coefficients=None,
    interconnection=None,
    dissipation=None,
    port=None,
    smooth: Network | None = None,
    integrator="rk4",
    substeps: int = 1,
    dtype=jnp.float32,
) -> PortHamiltonianFlow:
    """A port-Hamiltonian flow; what is not given starts at canonical J, no dissipation, no energy, no port.

    `dissipation` is R, symmetric and positive semidefinite; the flow holds its factor, so that it stays so in learning.
    """
    _positive(modes, "the number of modes")
    _positive(latent, "the latent size")
    _positive(substeps, "the number of substeps")
    if integrator not in ("midpoint", "rk4"):
        raise ValueError(f"integrator is {integrator!r}; expected 'midpoint' or 'rk4'.")
    if interconnection is None:
        half = latent // 2
        interconnection = np.zeros((latent, latent))
        interconnection[np.arange(half), half + np.arange(half)] = 1.0

    def filled(value, what, *shape):
        return jnp.asarray(_of_shape(0.0 if value is None else value, shape, what), dtype)

    return PortHamiltonianFlow(
        coefficients=filled(coefficients, "coefficients", modes, len(library)),
        interconnection=filled(interconnection, "interconnection", modes, latent, latent),
        dissipation=jnp.asarray(_resistance_factor(dissipation, modes, latent), dtype),
        port=filled(port, "port", modes, latent, inputs),
        smooth=smooth,
        library=tuple(library),
        integrator=integrator,
        substeps=substeps,
    )


def _resistance_factor(resistance, modes: int, latent: int) -> np.ndarray:
    """The lower-triangular L of every mode with `L Lᵀ = R`."""
    given = _of_shape(0.0 if resistance is None else resistance, (modes, latent, latent), "dissipation")
    mirrored = np.swapaxes(given, 1, 2)
    values, vectors = np.linalg.eigh((given + mirrored) / 2)
    skewness, small = np.abs(given - mirrored).max(), 1e-6 * np.abs(given).max()
    if skewness > small or values.min() < -small:
        raise ValueError(
            f"dissipation has least eigenvalue {values.min():.3g} and asymmetry {skewness:.3g}; expected R symmetric "
            "and positive semidefinite, for friction takes energy and never gives it. Check the sign."
        )
    roots = vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]
    return np.stack([np.linalg.qr(root.T)[1].T for root in roots])


def linear_flow(matrix, offset=None, port=None, *, inputs: int = 0, dtype=jnp.float32) -> LinearFlow:
    """A discrete linear flow per mode from its matrices (modes, latent, latent)."""
    matrix = np.asarray(matrix, np.float64)
    if matrix.ndim != 3 or matrix.shape[1] != matrix.shape[2] or not matrix.size:
        raise ValueError(f"matrix has shape {matrix.shape}; expected (modes, latent, latent), one square each.")
    modes, latent, _ = matrix.shape
    inputs = inputs if port is None else np.shape(port)[-1]
    given = {"offset": (offset, (modes, latent)), "port": (port, (modes, latent, inputs))}
    offset, port = (
        np.zeros(shape) if value is None else _of_shape(value, shape, what) for what, (value, shape) in given.items()
    )
    return LinearFlow(jnp.asarray(matrix, dtype), jnp.asarray(offset, dtype), jnp.asarray(port, dtype))


def linear_emission(
    matrix,
    *,
    noise,
    offset=None,
    noise_floor: float = 1e-4,
    axes: Sequence[int] | None = None,
    dtype=jnp.float32,
) -> LinearEmission:
    """A linear emission; `noise` is a standard deviation per channel, in standardised units, or a full covariance.

    A covariance has shape (channels, channels).
    """
    matrix = np.asarray(matrix, np.float64)
    if matrix.ndim != 2 or not matrix.size:
        raise ValueError(f"matrix has shape {matrix.shape}; expected (channels, latent).")
    channels, latent = matrix.shape
    noise, lower = _deviations(noise, (channels,), "noise")
    noise = _above(_of_shape(noise, (channels,), "noise"), noise_floor, "noise")
    if axes is not None:
        axes = tuple(int(a) for a in axes)
        if len(axes) != channels or len(set(axes)) != channels or not all(0 <= a < latent for a in axes):
            raise ValueError(
                f"axes are {axes}; expected one coordinate below {latent} for each of {channels} channels, once."
            )
        if (np.delete(matrix[0], axes[0]) != 0).any() or np.count_nonzero(matrix) > channels:
            raise ValueError(
                f"matrix has entries off the axes {axes}; expected none. Leave axes out for a full matrix."
            )
    return LinearEmission(
        jnp.asarray(matrix, dtype),
        jnp.asarray(_of_shape(0.0 if offset is None else offset, (channels,), "offset"), dtype),
        jnp.asarray(np.log(noise - noise_floor), dtype),
        noise_floor,
        axes,
        None if lower is None else jnp.asarray(lower, dtype),
    )


def axis_emission(latent: int, axes: Sequence[int], *, noise, noise_floor: float = 1e-4, dtype=jnp.float32):
    """A linear emission whose channel c reads coordinate `axes[c]`: the usual case of a robot log."""
    if not all(0 <= a < latent for a in axes):
        raise ValueError(f"axes are {tuple(axes)}; expected coordinates from 0 to {latent - 1}.")
    return linear_emission(np.eye(latent)[list(axes)], noise=noise, noise_floor=noise_floor, axes=axes, dtype=dtype)


def network_emission(
    latent: int,
    channels: int,
    *,
    noise,
    hidden=(32,),
    noise_floor: float = 1e-4,
    key: PRNGKeyArray,
    dtype=jnp.float32,
) -> NetworkEmission:
    """A network emission, for encoders and images."""
    noise = _above(_of_shape(noise, (channels,), "noise"), noise_floor, "noise")
    return NetworkEmission(
        network(latent, tuple(hidden), channels, key=key, dtype=dtype),
        jnp.asarray(np.log(noise - noise_floor), dtype),
        noise_floor,
    )


def hybrid_model(
    kernel: ModeKernel,
    flow: Flow,
    emission: Emission,
    *,
    noise,
    reset: Reset | None = None,
    start_mode=None,
    start_mean=None,
    start_scale: Any = 1.0,
    shift=None,
    scale=None,
    action_scale=None,
    noise_floor: float = 1e-4,
    channels: Sequence[str] | None = None,
    roughness=None,
) -> HybridModel:
    """A validated `HybridModel` from its parts; standard deviations are given as such, not as logs.

    `noise` is a standard deviation for each (mode, coordinate), or full covariances (modes, latent, latent).
    `roughness` (modes, latent, inputs) is what a unit of each input adds to it, in squares.
    """
    modes, latent, inputs = flow.port.shape
    width, dtype = emission.channels, dtype_of(emission)
    if kernel.logits.shape[0] != modes:
        raise ValueError(f"the kernel has {kernel.logits.shape[0]} modes and the flow has {modes}; give both the same.")
    names = tuple(channels) if channels is not None else tuple(f"y{i}" for i in range(width))
    if len(names) != width:
        raise ValueError(f"{len(names)} channel names for {width} emission channels; name every channel.")
    if len(set(names)) != len(names):
        raise ValueError(
            f"channel names repeat: {sorted({n for n in names if names.count(n) > 1})}; each needs its own."
        )

    noise, noise_lower = _deviations(noise, (modes, latent), "noise")

    def log_above(value, what):
        return np.log(_above(_of_shape(value, (modes, latent), what), noise_floor, what) - noise_floor)

    chances = _of_shape(1.0 if start_mode is None else start_mode, (modes,), "start_mode")
    scale = _above(_of_shape(1.0 if scale is None else scale, (width,), "scale"), 0.0, "scale")
    action_scale = _of_shape(1.0 if action_scale is None else action_scale, (inputs,), "action_scale")
    return HybridModel(
        kernel=kernel,
        flow=flow,
        reset=reset,
        log_noise=jnp.asarray(log_above(noise, "noise"), dtype),
        emission=emission,
        start_log_mode=jnp.asarray(np.log(chances + 1e-30), dtype),  # not learned to be impossible
        start_mean=jnp.asarray(
            _of_shape(0.0 if start_mean is None else start_mean, (modes, latent), "start_mean"), dtype
        ),
        start_log_scale=jnp.asarray(log_above(start_scale, "start_scale"), dtype),
        shift=jnp.asarray(_of_shape(0.0 if shift is None else shift, (width,), "shift"), dtype),
        scale=jnp.asarray(scale, dtype),
        action_scale=jnp.asarray(_above(action_scale, 0.0, "action_scale") if inputs else action_scale, dtype),
        noise_floor=noise_floor,
        channels=names,
        noise_lower=None if noise_lower is None else jnp.asarray(noise_lower, dtype),
        roughness=None if roughness is None else jnp.asarray(_of_shape(roughness, flow.port.shape, "roughness"), dtype),
    ).validate()
