"""audit: nine numbers of published runs, computed from their published inputs.

Sources of the inputs: Brown et al., 2020, table D.1; Narayanan et al., 2021, equation 4; Touvron et al.,
2023, section 2.4 and table 2; Llama Team, 2024, table 4 and section 3.3; Jiang et al., 2024, table 1;
DeepSeek-AI, DeepSeek-V3 Technical Report, 2024, table 1 and section 2.
"""

from __future__ import annotations

from collections.abc import Iterator

from course_lib.checks import kit
from course_lib.checks.notebooks.capstone.references import REFERENCES
from course_lib.facts import DAY, days, gpu, model_flops_utilization, six_n_d, transformer_flops
from course_lib.facts.experts import MIXTRAL_8X7B
from course_lib.models import PUBLISHED

ROUNDED = 0.01  # relative: papers print two or three digits
HOUR = 3600
GPT3, GPT3_TOKENS = 174.6e9, 300e9
LLAMA, LLAMA_TOKENS, LLAMA_GPUS, LLAMA_SPEED = 65.2e9, 1.4e12, 2048, 380  # tokens a second and GPU
A100, H100 = gpu("A100").flops, gpu("H100").flops
STAGES = MICROBATCHES = 16
SEQUENCES = 2048  # of a batch of Llama 3 405B, at 128 replicas
MIXTRAL, USED = MIXTRAL_8X7B.parameters(), MIXTRAL_8X7B.parameters(used=True)
DEEPSEEK, DEEPSEEK_TOKENS, HOURS = 37e9, 14.8e12, 2.664e6
FORWARD = "Only forward is counted. Backward takes twice as much, so a token needs 6 FLOPs per parameter."
BACKWARD = "Only backward is counted, but forward takes another half as much."
PERCENT = "Your number is in percent, but a share is asked for."
FLOPS_OF_ALL = six_n_d(DEEPSEEK, DEEPSEEK_TOKENS) / HOURS / HOUR / 1e12


def llama_mfu(units: float) -> float:
    """MFU, if a token took `units` FLOPs per parameter."""
    return units * LLAMA * LLAMA_SPEED / A100


def with_attention() -> float:
    shape = PUBLISHED["LLaMA-65B"]
    return transformer_flops(shape, 1, shape.context) / shape.context * LLAMA_SPEED / A100


def gpt3_days(units: float, gpus: int = 1024, reached: float = 140e12) -> float:
    return days(units / 6 * 175e9, GPT3_TOKENS, gpus, reached, 1.0)


def mixtral(experts: float, matrices: int = 3, key_heads: int = 8) -> float:
    """Parameters with so many experts a layer, matrices in each, and heads of keys."""
    shape = MIXTRAL_8X7B
    expert = matrices * shape.width * shape.hidden
    keys = 2 * shape.width * 128 * (key_heads - 8)
    return USED + shape.layers * (experts * expert - shape.k * 3 * shape.width * shape.hidden + keys)


ANSWERS = (
    kit.Answer(
        "gpt3_flops", six_n_d(GPT3, GPT3_TOKENS),
        {
            2 * GPT3 * GPT3_TOKENS: FORWARD, 4 * GPT3 * GPT3_TOKENS: BACKWARD,
            8 * GPT3 * GPT3_TOKENS: "Your number counts forward twice, as with full recomputation, but the "
            "paper's table counts 6 FLOPs per parameter and token.",
            six_n_d(GPT3, GPT3_TOKENS) / 1e15 / DAY: "Your number is in petaflop/s-days, but FLOPs are "
            "asked for.",
        },
        "FLOPs", tolerance=ROUNDED, otherwise="Take 6 FLOPs per parameter and token.",
    ),
    kit.Answer(
        "gpt3_days", gpt3_days(8),
        {
            gpt3_days(6): "The 140 TFLOP/s count recomputation, so the run must count it as well, with 8 "
            "FLOPs per parameter and token.",
            gpt3_days(8, reached=A100): "You took the data sheet's peak, but the GPUs reach 140 TFLOP/s.",
            gpt3_days(6, reached=A100): "You took the data sheet's peak, but the GPUs reach 140 TFLOP/s.",
            24 * gpt3_days(8): "Your number is in hours, but days are asked for.",
            gpt3_days(8, gpus=1): "Your number is for one GPU, but there are 1,024 of them.",
        },
        "days", tolerance=ROUNDED, otherwise="Divide the FLOPs by what 1,024 GPUs do in a day.",
    ),
    kit.Answer(
        "llama_65b_mfu", model_flops_utilization(LLAMA, LLAMA_SPEED, A100),
        {
            llama_mfu(8): "Your number counts recomputation, but MFU counts only the model's FLOPs, 6 per "
            "parameter.",
            with_attention(): "Your number includes the products of attention, which 6 N leaves out. Here "
            "6 N is asked for.",
            llama_mfu(2): FORWARD, llama_mfu(4): BACKWARD,
            llama_mfu(3): "624 TFLOP/s are for sparse matrices, while the dense peak of an A100 is 312.",
            100 * llama_mfu(6): PERCENT,
            LLAMA_GPUS * llama_mfu(6): "380 tokens per second is the speed of one GPU.",
            llama_mfu(6) / LLAMA_GPUS: "380 tokens per second is the speed of one GPU.",
        },
        "a share of the peak", tolerance=ROUNDED,
        otherwise="Divide 6 N times the tokens per second by the peak.",
    ),
    kit.Answer(
        "llama_65b_days", LLAMA_TOKENS / LLAMA_GPUS / LLAMA_SPEED / DAY,
        {
            LLAMA_TOKENS / LLAMA_SPEED / DAY: "380 tokens per second is the speed of one GPU, but there "
            "are 2,048.",
            LLAMA_TOKENS / LLAMA_GPUS / LLAMA_SPEED / HOUR: "Your number is in hours, but days are asked "
            "for.",
            6 * LLAMA_TOKENS / LLAMA_GPUS / LLAMA_SPEED / DAY: "The speed is in tokens, so nothing has to be "
            "multiplied by 6.",
        },
        "days", tolerance=ROUNDED, otherwise="All GPUs together train 2,048 times 380 tokens per second.",
    ),
    kit.Answer(
        "llama_405b_mfu", 400e12 / H100,
        {
            400e12 / 1979e12: "1,979 TFLOP/s are for fp8, or for sparse matrices, while the dense peak in "
            "bf16 is 989.",
            430e12 / H100: "430 TFLOP/s were reached on 8,192 GPUs.",
            380e12 / H100: "380 TFLOP/s were reached with 131,072 tokens per sequence.",
            0.41: "You took the paper's rounded number. What does its other number give?",
            400e12 / A100: "Llama 3 was trained on H100s.",
            100 * 400e12 / H100: PERCENT,
        },
        "a share of the peak", tolerance=ROUNDED,
        otherwise="Divide what a GPU reaches by its dense peak in bf16.",
    ),
    kit.Answer(
        "llama_405b_idle", (STAGES - 1) / (MICROBATCHES + STAGES - 1),
        {
            (STAGES - 1) / MICROBATCHES: "Your number is the idle time over the busy time, but the step "
            "has both.",
            MICROBATCHES / (MICROBATCHES + STAGES - 1): "Your number is the busy share.",
            (STAGES - 1) / (SEQUENCES + STAGES - 1): "The 128 replicas divide the 2,048 sequences.",
            1 / 2: "A stage is idle in p - 1 of m + p - 1 moments.",
            100 * (STAGES - 1) / (MICROBATCHES + STAGES - 1): PERCENT,
        },
        "a share of the step", tolerance=ROUNDED, otherwise="Count the microbatches of a replica first.",
    ),
    kit.Answer(
        "mixtral_held", MIXTRAL,
        {
            USED: "Your number counts the parameters a token uses, but all eight experts are held.",
            56e9: "Eight times 7 is not the model, because attention and the tables exist only once.",
            mixtral(8, matrices=2): "An expert is a SwiGLU, so it has three matrices.",
            mixtral(8, key_heads=32): "Keys and values have 8 heads, while queries have 32.",
            mixtral(1): "Your number counts only one expert per layer.",
            16 * MIXTRAL: "Your number is in bytes, but parameters are asked for.",
        },
        "parameters", tolerance=ROUNDED / 2,
        otherwise="Add up two tables, and in each layer attention, the router and eight experts.",
    ),
    kit.Answer(
        "mixtral_used", USED,
        {
            MIXTRAL: "Your number counts all parameters, but a token uses two of eight experts and "
            "everything else.",
            MIXTRAL / 4: "Only the experts are chosen, while every token uses attention and the tables.",
            14e9: "Twice 7 counts attention and the tables twice.",
            mixtral(1): "A token goes to two experts.",
            mixtral(2, matrices=2): "An expert is a SwiGLU, so it has three matrices.",
            mixtral(2, key_heads=32): "Keys and values have 8 heads, while queries have 32.",
        },
        "parameters", tolerance=ROUNDED / 2, otherwise="Replace eight experts by two, and leave the rest.",
    ),
    kit.Answer(
        "deepseek_tflops", FLOPS_OF_ALL,
        {
            FLOPS_OF_ALL * 671 / 37: "671 billion parameters are held, but a token uses 37 billion.",
            FLOPS_OF_ALL / 3: FORWARD, FLOPS_OF_ALL * 2 / 3: BACKWARD,
            FLOPS_OF_ALL * HOUR: "Turn the GPU hours into seconds.",
            FLOPS_OF_ALL * 1e12: "Your number is in FLOP/s, but TFLOP/s are asked for.",
            FLOPS_OF_ALL / 1e3: "Your number is in PFLOP/s, but TFLOP/s are asked for.",
            FLOPS_OF_ALL * 2048: "GPU hours already count every GPU.",
            FLOPS_OF_ALL / 2048: "GPU hours already count every GPU.",
            FLOPS_OF_ALL * 2.664 / 2.788: "2.788 million hours include the longer context and post-training.",
        },
        "TFLOP/s", tolerance=ROUNDED,
        otherwise="Divide 6 FLOPs per used parameter and token by the GPU seconds.",
    ),
)  # fmt: skip


@kit.exercise(
    points=5,
    objects=tuple(answer.name for answer in ANSWERS),
    references=REFERENCES,
    extra=True,
    constants=True,
)
def audit(draw: kit.Draw) -> Iterator[kit.Case]:
    yield kit.answers(ANSWERS)
