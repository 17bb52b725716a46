# %% wrong: tp in the node and replicas across
# is: idea
# says: which has a tenth of NVLink's
from course_lib.planning import Layout

my_layout = Layout({"dp": 4, "tp": 8}, microbatch=4, zero=1, recompute="none", sequence=True)


# %% wrong: tp over two nodes
# is: idea
# says: Its tp leaves the node
from course_lib.planning import Layout

my_layout = Layout({"dp": 2, "tp": 16}, microbatch=1, zero=1, recompute="none", sequence=True)


# %% wrong: everything sharded
# is: idea
# says: ZeRO-3 gathers all parameters
from course_lib.planning import Layout

my_layout = Layout({"dp": 32}, microbatch=4, zero=3, recompute="none")


# %% wrong: replicas alone
# is: idea
# says: A pipeline sends only activations
from course_lib.planning import Layout

my_layout = Layout({"dp": 32}, microbatch=1, zero=1, recompute="none")


# %% wrong: replicas alone, with all states
# is: form
# says: States alone take 16 bytes
from course_lib.planning import Layout

my_layout = Layout({"dp": 32}, microbatch=1, recompute="none")


# %% wrong: everything is recomputed
# is: idea
# says: More is recomputed
from course_lib.planning import Layout

my_layout = Layout({"pp": 4, "dp": 8}, microbatch=1, zero=1, recompute="full")


# %% wrong: large microbatches
# is: idea
# says: A smaller microbatch makes the bubble shorter
from course_lib.planning import Layout

my_layout = Layout({"pp": 4, "dp": 8}, microbatch=2, zero=1, recompute="none")


# %% wrong: large microbatches, for which layers run again
# is: idea
# says: nothing needs to be recomputed
from course_lib.planning import Layout

my_layout = Layout({"pp": 4, "dp": 8}, microbatch=4, zero=1, recompute="full")


# %% wrong: chunks
# is: idea
# says: a microbatch has v times as many messages
from course_lib.planning import Layout

my_layout = Layout({"pp": 4, "dp": 8}, microbatch=1, chunks=2, zero=1, recompute="none")


# %% wrong: ZeRO-2 between the nodes
# is: idea
# says: ZeRO-2 scatters the gradients of every microbatch
from course_lib.planning import Layout

my_layout = Layout({"pp": 2, "dp": 16}, microbatch=1, zero=2, recompute="none")


# %% wrong: a longer pipeline
# is: idea
# says: each of them has fewer microbatches to send
from course_lib.planning import Layout

my_layout = Layout({"pp": 16, "dp": 2}, microbatch=1, zero=1, recompute="none")


# %% wrong: two stages in each node
# is: idea
# says: each of them has fewer microbatches to send
from course_lib.planning import Layout

my_layout = Layout({"pp": 8, "dp": 4}, microbatch=1, zero=1, recompute="none")


# %% wrong: the right pipelines, each inside a node
# is: idea
# says: axes are listed outermost first
from course_lib.planning import Layout

my_layout = Layout({"dp": 8, "pp": 4}, microbatch=1, zero=1, recompute="none")


# %% wrong: a longer pipeline inside the node
# is: idea
# says: Replicas of one stage lie in several nodes
from course_lib.planning import Layout

my_layout = Layout({"dp": 4, "pp": 8}, microbatch=1, chunks=2, zero=1, recompute="none")


# %% wrong: half of the GPUs
# is: form
# says: would be idle
from course_lib.planning import Layout

my_layout = Layout({"pp": 8, "dp": 2}, microbatch=1, zero=1, recompute="none")


# %% wrong: a batch that is too small
# is: form
# says: should stay what it is
from course_lib.planning import Layout

my_layout = Layout({"dp": 32}, microbatch=16, zero=1, recompute="none")


# %% wrong: a dict
# is: form
# says: must be a Layout
my_layout = {"pp": 8, "dp": 4, "microbatch": 1}


# %% right: the planner's answer
from course_lib.facts import gpu, link
from course_lib.models import PUBLISHED
from course_lib.planning import Cluster, best_layout
from course_lib.planning.roofline import Work

four_nodes = Cluster(32, 8, gpu("L40S"), link("PCIe 4.0 x16"), link("10 Gb Ethernet"))
my_layout = best_layout(PUBLISHED["LLaMA-7B"], 32, 256, four_nodes, work=Work(0.63, flash=True))


# %% right: plain 1F1B without ZeRO
from course_lib.planning import Layout

my_layout = Layout({"pp": 4, "dp": 8, "cp": 1, "tp": 1}, recompute="none")


# %% right: two stages of two nodes each
from course_lib.planning import Layout

my_layout = Layout({"pp": 2, "dp": 16}, microbatch=1, zero=1, recompute="none")


# %% right: replicas alone, whose gradients are sent while layers run
from course_lib.planning import Layout

my_layout = Layout({"dp": 32}, microbatch=4, zero=2, recompute="full")
