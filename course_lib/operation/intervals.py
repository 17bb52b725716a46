"""How often to save: too often costs time for saves, and too seldom costs lost work.

A save of delta seconds follows every tau seconds of work. Failures come once in M seconds on average (MTBF),
at no particular time. A failure costs the work since the last save, which is half an interval on average. So
the run loses two shares of its time,

    delta / tau          to saves
    tau / (2 M)          to work that is lost

Their sum is smallest where its derivative is zero: delta / tau^2 = 1 / (2 M), so tau = sqrt(2 delta M). For
delta = 60 s and M = 3 h, tau is 1,138 s. M belongs to the job, so with N GPUs it is N times shorter than the
M of one GPU.

Goodput is the share of the time spent on work that was kept. Suppose that failures come at random with rate
1 / M. Then an attempt at tau + delta seconds succeeds with probability exp(-(tau + delta) / M), a failure
costs R seconds to start again, and

    goodput = tau / ((M + R) (exp((tau + delta) / M) - 1))

If delta goes to 0, so does the best tau. Then only R limits the goodput, to M / (M + R).

Sources: Young, A first order approximation to the optimum checkpoint interval, 1974 (the root). Daly, A
higher order estimate of the optimum checkpoint interval for restart dumps, 2006, for the time of a run, in
which failures while it restarts also count, so it has M exp(R / M) instead of M + R, and for the series for
the interval. Llama Team, The Llama 3 Herd of Models, 2024, section 3.3.4: 419 unexpected interruptions in 54
days on 16,384 GPUs, M = 3.1 h.
"""

from __future__ import annotations

from math import expm1, inf, sqrt
from random import Random


def best_interval(save_seconds: float, mtbf: float) -> float:
    """Young's interval: seconds of work between the end of a save and the start of the next.

    save_seconds: how long a save keeps the run from working; mtbf: seconds between two failures of the job.
    """
    _check(save_seconds=save_seconds, mtbf=mtbf)
    return sqrt(2 * save_seconds * mtbf)


def daly_interval(save_seconds: float, mtbf: float) -> float:
    """Daly's interval, with the same meaning, which is nearer to the best one if saves are long.

    It is mtbf if 2 M <= delta.
    """
    _check(save_seconds=save_seconds, mtbf=mtbf)
    if save_seconds >= 2 * mtbf:
        return mtbf
    ratio = save_seconds / (2 * mtbf)
    return sqrt(2 * save_seconds * mtbf) * (1 + sqrt(ratio) / 3 + ratio / 9) - save_seconds


def goodput(interval: float, save_seconds: float, restart_seconds: float, mtbf: float) -> float:
    """The share of the time that becomes kept work, 0 to 1, for failures at random times.

    A failure loses the work since the last save and `restart_seconds`, during which no other failure is
    counted.
    """
    _check(interval=interval, mtbf=mtbf)
    if save_seconds < 0 or restart_seconds < 0:
        raise ValueError(
            f"save_seconds {save_seconds} and restart_seconds {restart_seconds}: 0 or more"
        )
    tries = expm1(min((interval + save_seconds) / mtbf, 700))  # beyond it a float ends
    return interval / ((mtbf + restart_seconds) * tries)


def simulated_goodput(
    interval: float,
    save_seconds: float,
    restart_seconds: float,
    mtbf: float,
    failures: int,
    seed: int = 0,
) -> float:
    """The same share for a run with so many drawn failures, found with a clock instead of a formula."""
    draw = Random(seed)
    clock = work = 0.0
    for _ in range(failures):
        failure = clock + draw.expovariate(1 / mtbf)
        saved = int((failure - clock) / (interval + save_seconds))
        work += saved * interval
        clock = failure + restart_seconds
    return work / clock


def _check(**seconds: float) -> None:
    for name, value in seconds.items():
        if not 0 < value < inf:
            raise ValueError(f"{name}={value}: seconds, more than 0")
