"""A real Slurm on this machine: munge, MariaDB, slurmdbd, slurmctld and nodes, on loopback, in a folder of its own.

Every daemon is a child of the tests and ends with them. Nothing outside of the folder is written or read.
"""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from filelock import FileLock, Timeout

from tests.conftest import is_lacking
from tests.other_release import CLIENTS, SLURM_DAEMONS

DAEMONS = ("munged", "mariadbd", *SLURM_DAEMONS)
OTHER_SLURM = os.environ.get("POLDER_SLURM")  # a folder made by `python -m tests.other_release`
SYSTEM_SEARCH = os.environ["PATH"] + ":/usr/sbin:/sbin"
SEARCH = f"{OTHER_SLURM}/bin:{SYSTEM_SEARCH}" if OTHER_SLURM else SYSTEM_SEARCH
ACCOUNT = "polder"
FEATURE = "scratch-node"  # Snellius' name of a node with its own disk
# The system assigns none of these, nor does a training, before a daemon listens or while it is down.
PORTS = range(10_000, 20_000)
DEVICES = [Path("/dev", name) for name in ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts/ptmx")]


def missing() -> list[str]:
    """Return the commands that a cluster needs and this machine lacks."""
    return [name for name in (*DAEMONS, *CLIENTS, "mariadb-install-db") if shutil.which(name, path=SEARCH) is None]


_reserved: list[FileLock] = []


def _free_ports(number: int) -> list[int]:
    """Return unused ports that no other test cluster uses while this process lives."""
    results: list[int] = []
    while len(results) < number:
        port = secrets.choice(PORTS)
        lock = FileLock(f"{tempfile.gettempdir()}/polder-port-{port}.lock", blocking=False)
        with suppress(OSError, Timeout):
            lock.acquire()
            _reserved.append(lock)
            with socket.create_server(("127.0.0.1", port)):
                results.append(port)
    return results


def wait_until(
    true: Callable[[], object], what: str, seconds: float = 180, seen: Callable[[], object] | None = None
) -> None:
    """Wait until a condition is true; `seen` returns the current state for the message.

    Raises:
        TimeoutError: it did not become true in time.
    """
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            result = f"; there is {seen()}" if seen else ""
            raise TimeoutError(f"after {seconds:g} s still not so: {what}{result}")
        time.sleep(0.1)


class Link:
    """A network namespace for one node, and its link to the other nodes, which can be cut; requires root."""

    def __init__(self) -> None:
        self.name = f"polder-{secrets.token_hex(3)}"
        self._outer = f"{self.name[-6:]}-o"
        network = f"10.{secrets.randbelow(200) + 20}.{secrets.randbelow(250)}"
        self.controller, self.node = f"{network}.1", f"{network}.2"

    def make(self) -> None:
        """Make namespace and link."""
        inner = f"{self.name[-6:]}-i"
        self._ip("netns", "add", self.name)
        self._ip("link", "add", self._outer, "type", "veth", "peer", "name", inner)
        self._ip("link", "set", inner, "netns", self.name)
        for device, address, where in ((self._outer, self.controller, ()), (inner, self.node, ("-n", self.name))):
            self._ip(*where, "addr", "add", f"{address}/30", "dev", device)
            self._ip(*where, "link", "set", device, "up")
        self._ip("-n", self.name, "link", "set", "lo", "up")

    @staticmethod
    def lacking() -> str | None:
        """Return why namespaces are impossible here; None if they are possible."""
        if os.geteuid() != 0 or shutil.which("ip", path=SEARCH) is None:
            return "only root can make a network namespace, with iproute2"
        done = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True)
        return done.stderr.strip() if done.returncode else None

    @staticmethod
    def _ip(*words: str) -> None:
        path = str(shutil.which("ip", path=SEARCH))
        done = subprocess.run([path, *words], capture_output=True, text=True)
        assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"

    def cut(self) -> None:
        """Block all traffic."""
        self._ip("link", "set", self._outer, "down")

    def mend(self) -> None:
        """Allow all traffic again."""
        self._ip("link", "set", self._outer, "up")

    def remove(self) -> None:
        """Remove namespace and link."""
        self._ip("link", "del", self._outer)
        self._ip("netns", "del", self.name)


def _stepds(task: psutil.Process) -> list[psutil.Process]:
    """Return the Slurm processes that supervise a task."""
    with suppress(psutil.Error):
        return [parent for parent in task.parents() if parent.name().startswith("slurmstepd")]
    return []


# The kernel forbids /sys/cray, so a node's slurmd and its jobs get a /sys of their own with that additional folder.
CRAY_NODE = """
mount -t tmpfs none "$1"
for part in /sys/*; do mkdir "$1/${part##*/}"; mount --rbind "$part" "$1/${part##*/}"; done
mkdir -p "$1/cray/pm_counters"
mount --bind "$2" "$1/cray/pm_counters"
mount --rbind "$1" /sys
shift 2
exec "$@"
"""


class Cluster:
    """The cluster `loopback`: its nodes are node1, node2, … and its partitions cpu, gpu and high, which preempts.

    Its GPUs have a type, and Slurm accounts for the GPUs of that type alone, without their sum.
    With a link the last node is behind it, in a network of its own; the disk is the same. With counters, a folder
    with one of each node's name, Slurm's pm_counters plugin reads these as /sys/cray/pm_counters; for root alone.
    """

    def __init__(
        self,
        folder: Path,
        nodes: int = 2,
        cpus: int = 8,
        memory_megabytes: int = 16_000,
        link: Link | None = None,
        gpus: int = 2,
        counters: Path | None = None,
    ) -> None:
        self.folder, self.link, self.counters = folder, link, counters
        # Devices of any machine replace GPUs, without computation; Slurm does not report plain files.
        self.gpus = DEVICES[:gpus]
        self.nodes = [f"node{number}" for number in range(1, nodes + 1)]
        self.cpus, self.memory_megabytes = cpus, memory_megabytes
        self._controller, self._database, *ports = _free_ports(2 + nodes)
        addresses = ["127.0.0.1"] * (nodes - 1) + [link.node if link else "127.0.0.1"]
        self._places = dict(zip(self.nodes, zip(addresses, ports, strict=True), strict=True))
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.configuration = folder / "slurm.conf"

    def environment(self) -> dict[str, str]:
        """Return the variables with which a program finds this cluster.

        The plugin's job step drops every variable of Slurm, so the commands on the PATH set the configuration again.
        """
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH", "SQUEUE"))}
        return {**kept, "PATH": f"{self.folder}/bin:{SEARCH}", "SLURM_CONF": str(self.configuration)}

    def ask(self, *words: str, check: bool = True) -> str:
        """Return the output of a Slurm command."""
        done = subprocess.run(words, env=self.environment(), capture_output=True, text=True, timeout=60)
        assert not check or done.returncode == 0, f"{' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def state(self, job: str) -> str:
        """Return the state of a job, by squeue; empty when Slurm has forgotten it."""
        return self.ask("squeue", "--noheader", "--states=all", "--format=%T", f"--jobs={job}", check=False)

    def jobs(self) -> list[str]:
        """Return the numbers of the pending or running jobs."""
        return self.ask("squeue", "--noheader", "--format=%A").split()

    def log(self, daemon: str) -> str:
        """Return the output of a daemon."""
        return (self.folder / "log" / daemon).read_text(errors="replace")

    def describe(self) -> str:
        """Return nodes, jobs and the ends of the daemons' output, for the message of a test that fails."""
        words = (["sinfo"], ["squeue", "--states=all"], ["sacct", "--allocations"])
        daemons = ("slurmctld", "slurmdbd", *self.nodes)
        ends = [f"{daemon}:\n" + "\n".join(self.log(daemon).splitlines()[-60:]) for daemon in daemons]
        return "\n".join([*(self.ask(*command, check=False) for command in words), *ends])

    # Daemons

    def run(self, name: str, *words: str, **environment: str) -> None:
        """Start a daemon in the foreground; it ends when this process does."""
        with (self.folder / "log" / name).open("ab") as log:
            self._processes[name] = subprocess.Popen(
                ["setpriv", "--pdeathsig=TERM", "--", *words],
                env={**self.environment(), **environment},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def runs(self, name: str) -> bool:
        """Return whether a daemon runs."""
        return name in self._processes and self._processes[name].poll() is None

    def process(self, name: str) -> int:
        """Return the number of a daemon's process."""
        return self._processes[name].pid

    def end(self, name: str, signal: int = 15) -> None:
        """End a daemon and wait for it."""
        process = self._processes.pop(name, None)
        if process is None:
            return
        process.send_signal(signal)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def start_database(self) -> None:
        """Start slurmdbd and wait until it answers."""
        self.run("slurmdbd", "slurmdbd", "-D", MYSQL_UNIX_PORT=f"{self.folder}/run/mysql.sock")
        wait_until(lambda: self._answers("sacctmgr", "--noheader", "show", "cluster"), "slurmdbd answers")

    def start_controller(self) -> None:
        """Start slurmctld and wait until it answers."""
        self.run("slurmctld", "slurmctld", "-D")
        wait_until(lambda: self._answers("scontrol", "ping"), "slurmctld answers")

    def start_node(self, node: str) -> None:
        """Start the slurmd of a node and wait until it listens: Slurm may not have noticed its absence."""
        behind = self.link and node == self.nodes[-1]
        enter = ["nsenter", f"--net=/run/netns/{self.link.name}", "--"] if self.link and behind else []
        if self.counters:
            sys = self.folder / f"sys-{node}"
            sys.mkdir(exist_ok=True)
            within = ["sh", "-ec", CRAY_NODE, "sh", str(sys), str(self.counters / node)]
            enter += ["unshare", "--mount", "--propagation=private", "--", *within]
        stepd = ["-d", f"{OTHER_SLURM}/bin/slurmstepd"] if OTHER_SLURM else []
        self.run(node, *enter, "slurmd", "-D", *stepd, "-N", node)
        wait_until(lambda: self._listens(node), f"{node} listens")

    def _listens(self, node: str) -> bool:
        with suppress(OSError), socket.create_connection(self._places[node], timeout=1):
            return True
        return False

    def fail_node(self, node: str) -> None:
        """Kill a node with all its processes, and let Slurm notice."""
        self.end(node, signal=9)
        tasks = [process for process, environment in self._own() if environment.get("SLURMD_NODENAME") == node]
        everything = {parent for task in tasks for parent in _stepds(task)} | {*tasks}
        for end in (psutil.Process.suspend, psutil.Process.kill):  # at once, so that none sees another one die
            for process in everything:
                with suppress(psutil.Error):
                    end(process)
        self.ask("scontrol", "update", f"nodename={node}", "state=down", "reason=test")

    def _own(self) -> list[tuple[psutil.Process, dict[str, str]]]:
        """Return the processes of this cluster and its jobs with their variables."""
        results = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                environment = process.environ()
                if f"{self.folder}/bin" in environment.get("PATH", ""):
                    results.append((process, environment))
        return results

    def wait_for_nodes(self) -> None:
        """Wait until all nodes accept jobs."""
        words = ("sinfo", "--noheader", "--Node", "--partition=cpu", "--states=idle,alloc,mix", "--format=%N")
        wait_until(
            lambda: len(self.ask(*words, check=False).split()) == len(self.nodes), "all nodes are there", seconds=120
        )

    def _answers(self, *words: str) -> bool:
        return subprocess.run(words, env=self.environment(), capture_output=True).returncode == 0

    # The whole

    def start(self) -> None:
        """Start everything, within a few seconds."""
        if self.link:
            self.link.make()
        for name in ("run", "log", "state", "mysql", "munge", "bin", *(f"spool-{node}" for node in self.nodes)):
            (self.folder / name).mkdir(parents=True)
        for name, text in self._files().items():
            (self.folder / name).write_text(text)
            (self.folder / name).chmod(0o600 if name == "slurmdbd.conf" else 0o644)
        for name in CLIENTS:
            client = self.folder / "bin" / name
            client.write_text(
                f'#!/bin/sh\nSLURM_CONF={self.configuration} exec {shutil.which(name, path=SEARCH)} "$@"\n'
            )
            client.chmod(0o755)
        self._start_munge()
        self._start_mariadb()
        self.start_database()
        self.start_controller()
        self.ask("sacctmgr", "--immediate", "add", "account", ACCOUNT, "description=tests", "organization=tests")
        user = getpass.getuser()
        self.ask("sacctmgr", "--immediate", "add", "user", user, f"account={ACCOUNT}")
        self.ask("sacctmgr", "--immediate", "modify", "user", user, "set", f"defaultaccount={ACCOUNT}")
        for node in self.nodes:
            self.start_node(node)
        self.wait_for_nodes()

    def _start_munge(self) -> None:
        key, sock = self.folder / "munge" / "key", self.folder / "run" / "munge.sock"
        (self.folder / "munge").chmod(0o700)
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o600)
        files = [f"--pid-file={self.folder}/run/munged.pid", f"--log-file={self.folder}/log/munge"]
        seed = f"--seed-file={self.folder}/munge/seed"
        self.run("munged", "munged", "--foreground", f"--key-file={key}", f"--socket={sock}", seed, *files)
        wait_until(sock.exists, "munged listens")

    def _start_mariadb(self) -> None:
        run, data, user = self.folder / "run", self.folder / "mysql", getpass.getuser()
        # A MariaDB that starts deletes the temporary tables of all others in the folder for these.
        here = ["--no-defaults", f"--user={user}", f"--datadir={data}", f"--tmpdir={run}"]
        install = ["mariadb-install-db", *here, "--skip-test-db", "--auth-root-authentication-method=normal"]
        self.ask(*install)
        sock = f"--socket={run}/mysql.sock"
        small = ["--skip-networking", "--innodb-buffer-pool-size=64M", "--innodb-lock-wait-timeout=900"]
        self.run("mariadbd", "mariadbd", *here, sock, f"--pid-file={run}/mysql.pid", *small)
        client = ["--no-defaults", sock, "--user=root"]
        wait_until(lambda: self._answers("mariadb-admin", *client, "ping"), "MariaDB answers")
        grant = (
            "create database slurm_acct_db; create user slurm@localhost identified by 'slurm';"
            "grant all on slurm_acct_db.* to slurm@localhost"
        )
        self.ask("mariadb", *client, f"--execute={grant}")

    def clear(self) -> None:
        """Cancel all jobs and wait until they are gone; restart daemons and nodes that a test left down."""
        starts = {"slurmdbd": self.start_database, "slurmctld": self.start_controller}
        for name, start in starts.items():
            if not self.runs(name):
                start()
        for node in self.nodes:
            if not self.runs(node):
                self.start_node(node)
            if self.ask("sinfo", "--noheader", f"--nodes={node}", "--states=down,drain", "--format=%n"):
                self.ask("scontrol", "update", f"nodename={node}", "state=resume", check=False)
        self.ask("scontrol", "update", "partition=cpu", "state=up")
        self.ask("scancel", f"--user={getpass.getuser()}", check=False)
        wait_until(lambda: not self.jobs(), "no job is left")
        self.wait_for_nodes()

    def stop(self) -> None:
        """Stop everything, jobs and their processes first."""
        if "slurmctld" in self._processes:
            self.ask("scancel", "--signal=KILL", "--full", f"--user={getpass.getuser()}", check=False)
            self.ask("scancel", f"--user={getpass.getuser()}", check=False)
        for name in reversed([*self._processes]):
            self.end(name)
        for process, _ in self._own():  # leftovers of a killed slurmd
            with suppress(psutil.Error):
                process.kill()
        if self.link:
            self.link.remove()

    def _files(self) -> dict[str, str]:
        """Return the configuration, name to text."""
        folder, user, host = self.folder, getpass.getuser(), socket.gethostname().split(".")[0]
        munge = f"{folder}/run/munge.sock"
        # After a requeue Slurm waits until the old credential has expired, by default for two minutes.
        authentication = f"AuthType=auth/munge\nAuthInfo=socket={munge},cred_expire=5\n"
        if OTHER_SLURM:
            authentication += f"PluginDir={OTHER_SLURM}/plugins\n"
        database = f"""{authentication}DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={self._database}
CommunicationParameters=NoInAddrAny
SlurmUser={user}
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct_db
PidFile={folder}/run/slurmdbd.pid
"""
        nodes = "".join(
            f"NodeName={node} NodeHostname={host} NodeAddr={address} Port={port} CPUs={self.cpus} "
            f"RealMemory={self.memory_megabytes} Gres=gpu:a100:{len(self.gpus)} "
            f"Features={FEATURE} State=UNKNOWN\n"
            for node, (address, port) in self._places.items()
        )
        usual = "Nodes=ALL DefaultTime=10 DefMemPerCPU=200 State=UP"
        preempted = "PriorityTier=1 PreemptMode=REQUEUE GraceTime=30"  # cooperative processes end sooner
        energy = "acct_gather_energy/none"
        if self.counters:
            energy = "acct_gather_energy/pm_counters\nAcctGatherNodeFreq=1"
        # By default daemons listen on all addresses; otherwise they use the address of the host's name.
        communication = "" if self.link else "CommunicationParameters=NoCtldInAddrAny,NoInAddrAny\n"
        # A training's port follows from its job number, which must be unique among clusters on this machine.
        slurm = f"""{authentication}ClusterName=loopback
FirstJobId={self._controller}
SlurmctldHost={host}({self.link.controller if self.link else "127.0.0.1"})
SlurmctldPort={self._controller}
SlurmUser={user}
SlurmdUser={user}
{communication}StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
ReturnToService=2
MpiDefault=none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
AcctGatherEnergyType={energy}
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageEnforce=associations,limits,qos
AccountingStorageHost=127.0.0.1
AccountingStoragePort={self._database}
AccountingStoragePass={munge}
AccountingStorageTRES=gres/gpu:a100
AccountingStoreFlags=job_comment
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
RequeueExit=77
MinJobAge=300
KillWait=2
UnkillableStepTimeout=600
OverTimeLimit=0
BatchStartTimeout=20
SlurmctldTimeout=30
SlurmdTimeout=15
GresTypes=gpu
{nodes}PartitionName=cpu {usual} Default=YES MaxTime=120 {preempted} TRESBillingWeights=CPU=1.0,Mem=0.5G
PartitionName=gpu {usual} MaxTime=120 {preempted} TRESBillingWeights=CPU=1.0,Mem=0.5G,GRES/gpu:a100=16.0
PartitionName=high {usual} MaxTime=INFINITE PriorityTier=10 PreemptMode=OFF
"""
        return {
            "slurm.conf": slurm,
            "slurmdbd.conf": database,
            "gres.conf": "".join(
                f"NodeName={','.join(self.nodes)} Name=gpu Type=a100 File={gpu}\n" for gpu in self.gpus
            ),
            "cgroup.conf": "CgroupAutomount=no\n",
            "plugstack.conf": "",
        }


@contextmanager
def running(**options: Any) -> Iterator[Cluster]:
    """Start a cluster for the context, and stop it; the options are those of `Cluster`."""
    if lacking := missing():
        is_lacking(f"Slurm is not installed here: there is no {', '.join(lacking)} (.ci/run installs them)")
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))  # short: the path of a socket may have 107 characters
    folder.chmod(0o755)
    cluster = Cluster(folder, **options)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)
