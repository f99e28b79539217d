"""What a run through Slurm does besides its rules. Included last: it takes the prefix of all commands."""

import os

try:
    registration.register(run.slurm, Path(RUN), PREFIX)
except InputError as error:
    raise WorkflowError(str(error)) from None


# On a login node these take less time than a job takes to start.
localrules:
    sources_listing,
    plan_estimate,


onstart:
    refuse_what_is_missing()
    os.environ[frozen.VARIABLE] = frozen.freeze(Path(RUN), frozen_now)
    registration.begin(workflow, Path(RUN))


onsuccess:
    accounting.end(Path(RUN), logger.warning)


onerror:
    accounting.end(Path(RUN), logger.warning)
