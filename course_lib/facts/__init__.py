"""Every constant and closed form that the course uses, with its source beside it.

    costs.py      costs of collectives: bytes, rounds, seconds, as functions of N and M
    exact.py      the same to the byte, for one rank and a size that N need not divide
    hardware.py   links: how many bytes a second they carry each way
    data_parallel.py  a step of replicas: bytes, exposed time, scaling efficiency
    compression.py  compressed averages of gradients: bytes that each rank sends
    zero.py       ZeRO: bytes that a rank keeps and sends, by stage
    fsdp.py       fully sharded: bytes sent by setting, when a gather hides, hybrid sharding
    tensor_parallel.py  a layer over n ranks: bytes sent, bytes kept for backward, when it pays
    transformer.py  a transformer: parameters, and FLOPs of training it
    pipeline.py   a pipeline: its bubble, and the memory of its ranks, by schedule
    context_parallel.py  attention over a spread sequence: bytes, idling ranks, when it hides, what fits

A later topic adds a module here and its names below.

Notation: n ranks; nbytes is M, the bytes of the full tensor; alpha seconds a message, beta seconds a
byte. "The full tensor" of an all-gather is its output, of a reduce-scatter or all-to-all its input, of
a scatter or gather all N pieces together.
"""

from course_lib.facts.compression import (
    int8_bytes,
    int8_gather_bytes,
    one_bit_adam_ratio,
    powersgd_bytes,
    powersgd_elements,
    sign_bytes,
    topk_break_even,
    topk_bytes,
    topk_count,
    uncompressed_bytes,
)
from course_lib.facts.context_parallel import (
    RING_HOSTS,
    RingHost,
    attention_saved_bytes,
    causal_idle_shares,
    causal_scores,
    causal_slowdown,
    hiding_block,
    longest_sequence,
    minimal_sequence,
    ring_attention_bytes,
    ring_attention_messages,
    ulysses_bytes,
    ulysses_ring_bytes,
)
from course_lib.facts.costs import (
    ALGORITHMS,
    BUILT_INS,
    TREE_BLOCKS,
    Cost,
    bus_bandwidth,
    bytes_sent_per_rank,
    crossover_bytes,
    hierarchical_bytes,
    hierarchical_rounds,
    hierarchical_seconds,
    least_bytes,
    logical_bytes,
    rounds,
    seconds,
    serial_bytes,
)
from course_lib.facts.data_parallel import (
    data_parallel_bytes,
    exposed_after,
    exposed_communication,
    scaling_efficiency,
    synchronization_seconds,
)
from course_lib.facts.exact import chunk_sizes, exact_bytes
from course_lib.facts.fsdp import (
    crossing_bytes,
    fsdp_bytes,
    fsdp_gathers,
    hides_from,
    hybrid_across,
    hybrid_inside,
    unit_bytes,
)
from course_lib.facts.hardware import GB, LINKS, NETWORK_ALPHA, NVLINK_ALPHA, Gpu, Link, gpu, link
from course_lib.facts.pipeline import (
    pipedream_versions,
    pipeline_activations,
    pipeline_bubble,
    pipeline_bubble_of_ideal,
    pipeline_bubble_of_total,
    pipeline_bytes_sent,
)
from course_lib.facts.tensor_parallel import (
    gathered_logits_bytes,
    key_value_copies,
    korthikanti_activations,
    row_then_column_bytes,
    saved_layer_bytes,
    tensor_parallel_bytes,
    tensor_parallel_intensity,
    tensor_parallel_layer_bytes,
    tensor_parallel_seconds,
    vocab_parallel_embedding_bytes,
    vocab_parallel_loss_bytes,
)
from course_lib.facts.transformer import (
    attention_flops,
    attention_parameters,
    layer_parameters,
    matmul_parameters,
    mlp_parameters,
    norm_parameters,
    six_n_d,
    transformer_flops,
    transformer_parameters,
)
from course_lib.facts.zero import FLOAT32, MIXED, zero_bytes, zero_memory, zero_volume

__all__ = [
    "ALGORITHMS",
    "BUILT_INS",
    "FLOAT32",
    "GB",
    "LINKS",
    "MIXED",
    "NETWORK_ALPHA",
    "NVLINK_ALPHA",
    "RING_HOSTS",
    "TREE_BLOCKS",
    "Cost",
    "Gpu",
    "Link",
    "RingHost",
    "attention_flops",
    "attention_parameters",
    "attention_saved_bytes",
    "bus_bandwidth",
    "bytes_sent_per_rank",
    "causal_idle_shares",
    "causal_scores",
    "causal_slowdown",
    "chunk_sizes",
    "crossing_bytes",
    "crossover_bytes",
    "data_parallel_bytes",
    "exact_bytes",
    "exposed_after",
    "exposed_communication",
    "fsdp_bytes",
    "fsdp_gathers",
    "gathered_logits_bytes",
    "gpu",
    "hides_from",
    "hiding_block",
    "hierarchical_bytes",
    "hierarchical_rounds",
    "hierarchical_seconds",
    "hybrid_across",
    "hybrid_inside",
    "int8_bytes",
    "int8_gather_bytes",
    "key_value_copies",
    "korthikanti_activations",
    "layer_parameters",
    "least_bytes",
    "link",
    "logical_bytes",
    "longest_sequence",
    "matmul_parameters",
    "minimal_sequence",
    "mlp_parameters",
    "norm_parameters",
    "one_bit_adam_ratio",
    "pipedream_versions",
    "pipeline_activations",
    "pipeline_bubble",
    "pipeline_bubble_of_ideal",
    "pipeline_bubble_of_total",
    "pipeline_bytes_sent",
    "powersgd_bytes",
    "powersgd_elements",
    "ring_attention_bytes",
    "ring_attention_messages",
    "rounds",
    "row_then_column_bytes",
    "saved_layer_bytes",
    "scaling_efficiency",
    "seconds",
    "serial_bytes",
    "sign_bytes",
    "six_n_d",
    "synchronization_seconds",
    "tensor_parallel_bytes",
    "tensor_parallel_intensity",
    "tensor_parallel_layer_bytes",
    "tensor_parallel_seconds",
    "topk_break_even",
    "topk_bytes",
    "topk_count",
    "transformer_flops",
    "transformer_parameters",
    "ulysses_bytes",
    "ulysses_ring_bytes",
    "uncompressed_bytes",
    "unit_bytes",
    "vocab_parallel_embedding_bytes",
    "vocab_parallel_loss_bytes",
    "zero_bytes",
    "zero_memory",
    "zero_volume",
]
