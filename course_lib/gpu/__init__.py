"""Experiments that only a GPU can run, for the sections "On your GPUs", and recorded runs of them.

    on_your_gpus(ROOFLINE, predicted=least)   measured on this machine's GPUs, or else a record
    python -m course_lib.gpu                  every experiment for which there are GPUs, into one JSON file

An experiment is a small body that returns rows. `experiment.py` measures them and reads the records, which
are in `records/`, and `table.py` shows both in a notebook. Other files hold the experiments of one subject.
"""

from course_lib.gpu.experiment import Experiment, Row
from course_lib.gpu.table import on_your_gpus, rows_named

__all__ = ["Experiment", "Row", "on_your_gpus", "rows_named"]
