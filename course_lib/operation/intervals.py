"""How often to save: too often costs time for saves, too seldom costs work that is lost.

Work of tau seconds is followed by a save of delta seconds. Failures come once in M seconds on average
(MTBF), at no particular time. A failure costs the work since the last save, half an interval on average. So
the run loses two shares of its time,

    delta / tau          to saves
    tau / (2 M)          to work that is lost

Their sum is least where its derivative is zero: delta / tau^2 = 1 / (2 M), so tau = sqrt(2 delta M). For
delta = 60 s and M = 3 h it is 1,138 s. M is that of the job: with N GPUs it is N times shorter than of one.

Goodput is the share of the time that became work that was kept. If failures come at random with rate 1 / M,
an attempt at tau + delta seconds succeeds with probability exp(-(tau + delta) / M), a failure costs R
seconds to start again, and

    goodput = tau / ((M + R) (exp((tau + delta) / M) - 1))

As delta goes to 0, the best tau does too, and R alone bounds the goodput: M / (M + R).

Sources: Young, A first order approximation to the optimum checkpoint interval, 1974 (the root). Daly, A
higher order estimate of the optimum checkpoint interval for restart dumps, 2006: the time of a run, in
which failures while it restarts count too, so M exp(R / M) in place of M + R, and the series for the
interval. Llama Team, The Llama 3 Herd of Models, 2024, section 3.3.4: 419 unexpected interruptions in 54
days on 16,384 GPUs, M = 3.1 h.
"""

from __future__ import annotations

from math import expm1, inf, sqrt
from random import Random


def best_interval(save_seconds: float, mtbf: float) -> float:
    """Young's interval: seconds of work between the end of a save and the start of the next.

    save_seconds: for which a save keeps the run from working; mtbf: seconds between two failures of the job.
    """
    _check(save_seconds=save_seconds, mtbf=mtbf)
    return sqrt(2 * save_seconds * mtbf)


def daly_interval(save_seconds: float, mtbf: float) -> float:
    """Daly's interval, of the same meaning: nearer to the best one if saves are long. mtbf if 2 M <=
    delta."""
    _check(save_seconds=save_seconds, mtbf=mtbf)
    if save_seconds >= 2 * mtbf:
        return mtbf
    ratio = save_seconds / (2 * mtbf)
    return sqrt(2 * save_seconds * mtbf) * (1 + sqrt(ratio) / 3 + ratio / 9) - save_seconds


def goodput(interval: float, save_seconds: float, restart_seconds: float, mtbf: float) -> float:
    """The share of the time that becomes kept work, 0 to 1, for failures at random times.

    A failure loses the work since the last save and `restart_seconds`, in which no other failure is counted.
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
    """The same share, of a run with so many drawn failures: no formula, only a clock."""
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
