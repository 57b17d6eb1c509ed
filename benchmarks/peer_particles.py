"""The `particles` peer, in its own environment (it needs numpy < 2): times as JSON on standard output."""

import json
import sys
import time

import numpy as np
import particles

from slds import CHANNELS, LATENT, slds


class Bootstrap(particles.FeynmanKac):
    """The bootstrap filter of the switching linear system, vectorised over particles."""

    def __init__(self, system: dict):
        super().__init__(T=len(system["log"]))
        self.system, self.cumulative = system, system["table"].cumsum(1)

    def moved(self, mode, z):
        uniform = np.random.rand(len(mode))
        mode = (uniform[:, None] > self.cumulative[mode]).sum(1)
        s = self.system
        z = np.einsum("nij,nj->ni", s["matrix"][mode], z) + s["offset"][mode] + s["noise"] * np.random.randn(*z.shape)
        return np.column_stack([mode, z])

    def M0(self, N):
        return self.moved(np.zeros(N, int), np.random.randn(N, LATENT))

    def M(self, t, xp):
        return self.moved(xp[:, 0].astype(int), xp[:, 1:])

    def logG(self, t, xp, x):
        error = (self.system["log"][t] - x[:, 1:] @ self.system["emission"].T) / self.system["sensor"]
        return -0.5 * (error**2).sum(1) - CHANNELS * np.log(self.system["sensor"] * np.sqrt(2 * np.pi))

    def done(self, smc):
        return smc.t >= self.T


def main() -> None:
    count, runs = int(sys.argv[1]), int(sys.argv[2])
    system, seconds, values = slds(), [], []
    for _ in range(runs + 1):
        begun = time.perf_counter()
        smc = particles.SMC(fk=Bootstrap(system), N=count, resampling="systematic", ESSrmin=0.5, collect="off")
        smc.run()
        seconds.append(time.perf_counter() - begun)
        values.append(float(smc.logLt))
    print(json.dumps({"seconds": seconds[1:], "log_evidence": values[1:]}))


if __name__ == "__main__":
    main()
