# %% wrong: rank and world size in each other's place
# is: slip
# says: are swapped
def hello():
    return dist.get_world_size(), dist.get_rank(), str(device())


# %% wrong: environment variables are texts
# is: form
# says: Environment variables are texts
import os


def hello():
    return os.environ["RANK"], os.environ["WORLD_SIZE"], str(device())


# %% wrong: ranks counted from one
# is: slip
# says: counted from 0
def hello():
    return dist.get_rank() + 1, dist.get_world_size(), str(device())


# %% wrong: the largest rank for the world size
# is: slip
# says: largest rank is one less
def hello():
    return dist.get_rank(), dist.get_world_size() - 1, str(device())


# %% wrong: the same rank everywhere
# is: slip
# says: dist.get_rank\(\) tells them apart
def hello():
    return 0, dist.get_world_size(), str(device())


# %% wrong: printed, not returned
# is: form
# says: Return three values
def hello():
    print(f"rank {dist.get_rank()} of {dist.get_world_size()} on {device()}")


# %% wrong: a device made up
# is: slip
# says: Ask course_lib.device\(\)
def hello():
    return dist.get_rank(), dist.get_world_size(), f"cuda:{dist.get_rank()}"


# %% wrong: the number of processors
# is: slip
# says: as the world size of rank
import os


def hello():
    return dist.get_rank(), os.cpu_count() + 100, str(device())


# %% right: by the group
def hello():
    world = dist.group.WORLD
    return world.rank(), world.size(), f"{device()}"


# %% right: a list, and the device itself
def hello():
    where = device()
    return [dist.get_rank(), dist.get_world_size(), where]


# %% right: environment variables turned into numbers
import os


def hello():
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), device().type
