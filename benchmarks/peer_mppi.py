"""The pytorch_mppi peer, in its own environment: one replan for every line on standard input, times as JSON."""

import json
import sys
import time

import numpy as np
import torch
from pytorch_mppi import MPPI

from planning_system import CANDIDATES, HORIZON, INPUTS, LATENT, MODES, NOISE, PARTICLES, system


def main() -> None:
    torch.set_num_threads(int(sys.argv[1]))
    s = {k: torch.tensor(v, dtype=torch.float32) for k, v in system().items()}
    by_all = torch.cat([s["matrix"].reshape(-1, LATENT).T, torch.zeros(INPUTS, MODES * LATENT)])
    by_all[LATENT:] = s["port"].reshape(-1, INPUTS).T

    def dynamics(state, action):
        """The mode is the last column of the state."""
        mode, inputs = state[:, LATENT].long(), torch.cat([state[:, :LATENT], action], 1)
        logits = s["logits"][mode] + torch.tanh(inputs @ s["first"].T) @ s["last"].T
        cumulative = torch.softmax(logits, 1).cumsum(1)
        drawn = (torch.rand(len(state), 1) > cumulative[:, :-1]).sum(1)
        means = (inputs @ by_all).reshape(-1, MODES, LATENT)
        z = means[torch.arange(len(state)), drawn] + NOISE * torch.randn(len(state), LATENT)
        return torch.cat([z, drawn[:, None].float()], 1)

    def cost(state, action):  # noqa: ARG001
        return torch.clip((state[:, 0] - 1) ** 2 + state[:, 1] ** 2, 0, 10)

    planner = MPPI(
        dynamics, cost, LATENT + 1, 0.25 * torch.eye(INPUTS), num_samples=CANDIDATES, horizon=HORIZON, lambda_=0.1,
        u_min=-torch.ones(INPUTS), u_max=torch.ones(INPUTS), rollout_samples=PARTICLES,
    )  # fmt: skip
    start = torch.cat([s["start"], torch.zeros(1)])
    with torch.no_grad():
        for _ in range(3):
            planner.command(start)
        for _ in sys.stdin:
            begun, spent = time.perf_counter(), time.process_time()
            action = planner.command(start)
            out = {"seconds": time.perf_counter() - begun, "cpu": time.process_time() - spent}
            print(json.dumps(out | {"finite": bool(np.isfinite(action.numpy()).all())}), flush=True)


if __name__ == "__main__":
    main()
