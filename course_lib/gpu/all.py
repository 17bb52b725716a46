"""All experiments, in the order in which they are recorded, beginning with experiments for one GPU."""

from __future__ import annotations

from course_lib.gpu.arithmetic import FORMATS, LAYER_AND_MESSAGES, NARROW_LAYERS, ROOFLINE
from course_lib.gpu.attention import ATTENTION, RING
from course_lib.gpu.layouts import ON_ALL, ON_ONE
from course_lib.gpu.memory import HOST_COPIES, KEPT_OR_NOT, MASKS, STATES
from course_lib.gpu.messages import ALL_REDUCES, CALL_AND_WORK, PING_PONG
from course_lib.gpu.mixtures import EXCHANGES, GROUPED
from course_lib.gpu.pipelines import ACTIONS, AXES, PIPELINE
from course_lib.gpu.saves import SAVES
from course_lib.gpu.training import ONE_STEP, OVERLAP, PHASES, STEPS

EXPERIMENTS = (
    ONE_STEP, ROOFLINE, ATTENTION, FORMATS, KEPT_OR_NOT, PHASES, HOST_COPIES, NARROW_LAYERS, ACTIONS,
    CALL_AND_WORK, MASKS, GROUPED, SAVES, ON_ONE,
    STEPS, ALL_REDUCES, PING_PONG, OVERLAP, STATES, LAYER_AND_MESSAGES, PIPELINE, RING, AXES, EXCHANGES,
    ON_ALL,
)  # fmt: skip
