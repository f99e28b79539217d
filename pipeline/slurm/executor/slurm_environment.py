"""The environment of Slurm's commands, without the options that a shell or an outer job brings.

Slurm's commands read their options from variables too (sbatch(1), INPUT ENVIRONMENT VARIABLES). Inside a batch job they
are those of the outer job: its SLURM_MEM_PER_CPU contradicts the `--mem` of each job that is submitted there. In a
user's shell SLURM_EXPORT_ENV=NONE empties the environment of each step, and SQUEUE_STATES hides the jobs that wait.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

PREFIXES = ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "SQUEUE_", "SACCT_", "SCANCEL_", "SCONTROL_", "SINFO_")
# One address for the processes of all trainings: that of another project's shell is none of theirs.
DROPPED = {"MASTER_ADDR", "MASTER_PORT"}
KEPT = {"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT"}  # where Slurm is, and who the user is


def clean_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables without the options of Slurm's commands; of this process by default."""
    variables = os.environ if environment is None else environment
    return {
        name: value
        for name, value in variables.items()
        if name in KEPT or not (name in DROPPED or name.startswith(PREFIXES))
    }


def list_ignored_options(environment: Mapping[str, str]) -> list[str]:
    """Return the variables by which a person chose options of submitted jobs, which are not used.

    Inside a job most are Slurm's own: only those that sbatch reads and no job has are listed there.
    """
    prefixes = ("SBATCH_",) if "SLURM_JOB_ID" in environment else ("SBATCH_", "SRUN_", "SLURM_")
    return sorted(name for name in environment if name in DROPPED or (name.startswith(prefixes) and name not in KEPT))
