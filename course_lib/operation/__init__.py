"""In operation: is it fast, is it healthy, and what happens when a rank dies? Begin with disk.py.

If a rank dies:

    disk.py        Disk: a folder that forgets what was not synced, and every state after a power failure
    protocol.py    commit, newest: a save that can be interrupted; a damaged file is named, and not used
    folder.py      Folder: a real folder, on which the same commit works
    crashes.py     power_failures, faults: tries every power failure of a save
    run.py         Training: the parts of a run; its state as bytes
    remember.py    capture, restore: everything a run has to remember, as plain data
    plans.py       write_plan, read_plan: which rank writes what, and which pieces it reads
    shards.py      save_shards, load_shards: save on pp 2 x tp 2, load on dp 3
    behind.py      AsyncCheckpoint: copies immediately, and writes behind the next steps
    intervals.py   best_interval, goodput: how often to save, and the share of the time that is kept
    agents.py      run_agents: two elastic agents on one machine, and ranks that are really killed
    failures.py    run_with_failures: a run that is killed at drawn times until it has finished
    training.py    train, measured: the small run of these labs. It uses journal.py and starter.py

If a rank is slow, or wrong:

    shares.py      breakdown: where a step's time goes
    lateness.py    find_straggler: the rank that is last more often than by chance
    symptoms.py    diagnose: the cause, from a step's seconds by rank
    profiles.py    draw_profiles: twelve runs to diagnose, one of them healthy
    recording.py   record: sixty steps of 16 ranks with five incidents
    levers.py      pull: a step's profile with one lever
    metrics.py     step_metrics, mfu: the numbers of a dashboard
    events.py      EventWriter: curves that TensorBoard reads
    bits.py        odd_ranks: the replica whose bits differ
    local.py       local_steps: H steps on each rank separately, then one outer step of all (DiLoCo)

The folder imports only torch and cloudpickle, and can be copied out with exports.py above it.

The names are imported when they are first used, so the other names still work while an exercise hides a
module. No module has the name of its function, because it would replace that function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..exports import exports

if TYPE_CHECKING:
    from .agents import AgentsRun, Kill, run_agents
    from .behind import AsyncCheckpoint
    from .bits import bit_sum, odd_ranks
    from .crashes import Crash, Fault, faults, power_failures
    from .disk import Disk, PowerFailure
    from .events import EventWriter, Scalar, read_scalars
    from .failures import FailedRun, run_with_failures, times_between_failures
    from .folder import Folder
    from .intervals import best_interval, daly_interval, goodput, simulated_goodput
    from .journal import Journal, Line
    from .lateness import arrivals_of, binomial_tail, find_straggler
    from .levers import LEVERS, arrivals, pull, settled
    from .local import local_steps
    from .metrics import mfu, step_metrics
    from .plans import Box, elements, inside, overlap, read_plan, slices, write_plan
    from .profiles import draw_profiles
    from .protocol import (
        DamagedCheckpoint,
        commit,
        new_prefix,
        newest,
        newest_with,
        publish,
        read_manifest,
        read_part,
        steps,
        tidy,
        write_parts,
    )
    from .recording import Recording, record
    from .remember import capture, copied, restore
    from .run import Training, from_bytes, to_bytes
    from .shards import load_shards, load_step, save_shards
    from .shares import breakdown, calls_of
    from .starter import fork
    from .symptoms import Profile, diagnose
    from .training import Costs, measured, train

__getattr__, __dir__, __all__ = exports(__name__)
