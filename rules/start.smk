"""What a start does before the rules are read: it locks the run, keeps what it is now, and forgets what is stale."""

import atexit
import os
import time

from pipeline.energy import node_meter, readings
from pipeline.job import frozen
from pipeline.job.attempt import SNAKEMAKE
from pipeline.provenance import evidence, seal
from pipeline.workflow import invocation, run_lock
from pipeline.config.renamed_keys import in_new_words
from pipeline.workflow.stale_records import Stale, is_locked
from pipeline.slurm import takeover


def seal_start():
    """Seal what this start leaves; the exit code says whether that was done."""
    if not seal.end(Path(RUN), run.provenance, seal.say):
        held.release()
        seal.fail()


# One start works on a run. What a snakemake that was killed left behind are its lock, and jobs that are not to be
# submitted twice.
action = invocation.action(sys.argv[1:]) if workflow.is_main_process else "other"
try:
    if action == "execution":
        held = run_lock.take(Path(RUN), logger.warning)
        seal.begin(Path(RUN), run.provenance, logger.warning)
        # At the end of a start, also of one that had nothing to do or was refused, when its own meter has ended.
        atexit.register(seal_start)
        takeover.take_over(Path(RUN), logger.warning)
        if any(not holder.is_mine for holder in held.dead):
            takeover.wait_for_remote_steps(Path(RUN), logger.warning)
        held.dead.clear()
        # What Snakemake itself uses, with all that runs below it: on a cluster that is its share of the login node.
        # In an allocation of Slurm it says which. Its jobs say whose they are.
        began = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        allocation = os.environ.get("SLURM_JOB_ID", "")
        name = f"snakemake.{began}.{os.getpid()}.{allocation}.{Path(RUN).name}"
        os.environ[SNAKEMAKE] = name
        meter = node_meter.NodeMeter(
            node_meter.readings_file(Path(RUN).absolute() / readings.READINGS, name)
        )
        atexit.register(meter.end)
    elif action == "unlock":
        run_lock.unlock(Path(RUN), logger.warning)
except InputError as error:
    raise WorkflowError(str(error)) from None

if workflow.is_main_process:
    for sentence in [*in_new_words(config)[1], *dag.finished.stays()]:
        logger.warning(sentence)

# Jobs are those of the configuration and the code of this moment, however much is edited until they run.
last_start = frozen.newest(Path(RUN))
frozen_now = dag.frozen() if workflow.is_main_process else {}
if workflow.is_main_process:
    frozen_now |= job_environment.describe_image(
        run.platform, last_start, hashed=action == "execution"
    )
for difference in frozen.differences(last_start or frozen_now, frozen_now):
    logger.warning(f"since the last start: {difference}")

# The truth lies in the records, not in .snakemake: a step whose record no longer says it runs again. A dry run says so
# and deletes nothing.
stale = Stale(dag, Path(".snakemake/metadata"))
# Neither does a start that Snakemake is about to refuse, because its own lock lies there.
keeps = action != "execution" or is_locked(RUN, Path(run_lock.SNAKEMAKE_LOCKS))


def make_again(records, because):
    if workflow.is_main_process:
        for path in records:
            logger.warning(f"{path} {because}: its step runs again")
            if not keeps:
                path.unlink()


no_more = stale.of_units_no_more() if workflow.is_main_process else []
if no_more:
    logger.warning(
        f"{len(no_more)} files are of units that the sources no longer have, such as {no_more[0]}: they are deleted"
    )
    if not keeps:
        try:
            evidence.attest_removed(Path(RUN), no_more)
        except InputError as error:
            raise WorkflowError(str(error)) from None
        for path in no_more:
            path.unlink()

make_again(
    stale.unfit(), "was made with other settings, code or environment, or is no record"
)
make_again(stale.incomplete(), "names files that are not there as it says")
make_again(stale.of_other_raw_files(), "read other raw files")
