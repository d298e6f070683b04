"""The configuration files of the lab's Slurm, as text. Pure.

Quirks that made it so are told where they are; what is not explained is in Slurm's own manual.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

CPUS_PER_NODE = 96
MEMORY_MIB_PER_NODE = 2_000_000
PEOPLE = ("alice", "bob")


@dataclass(frozen=True)
class Layout:
    """Where one lab lies and how large it is. Ports: slurmctld, +2 slurmdbd, +3 slurmrestd, +100... the slurmds."""

    root: Path
    port: int
    nodes: int = 16
    gpus_per_node: int = 8
    nodes_per_leaf: int = 4
    cluster: str = "lab"
    release: tuple[int, int] = (22, 5)
    min_job_age_s: int = 300

    @property
    def node_names(self) -> list[str]:
        return [f"gpu{number:03d}" for number in range(1, self.nodes + 1)]

    def node_port(self, name: str) -> int:
        return self.port + 100 + int(name.removeprefix("gpu"))

    @property
    def rest_port(self) -> int:
        return self.port + 3

    @property
    def all_nodes(self) -> str:
        return f"gpu[001-{self.nodes:03d}]"

    def path(self, name: str) -> Path:
        return self.root / name


def slurm_conf(lab: Layout) -> str:
    munge = lab.path("munge/munge.sock")
    first, last = lab.port + 101, lab.port + 100 + lab.nodes
    return f"""\
ClusterName={lab.cluster}
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={lab.port}
SlurmUser=slurm
AuthType=auth/munge
AuthInfo=socket={munge},cred_expire=10
AuthAltTypes=auth/jwt
AuthAltParameters=jwt_key={lab.path("etc/jwt_hs256.key")}
StateSaveLocation={lab.path("state")}
SlurmctldPidFile={lab.path("run/slurmctld.pid")}
SlurmctldLogFile={lab.path("log/slurmctld.log")}
SlurmdPidFile={lab.path("run")}/slurmd.%n.pid
SlurmdSpoolDir={lab.path("spool")}/%n
SlurmdLogFile={lab.path("log")}/slurmd.%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=2
JobAcctGatherParams=OverMemoryKill
MpiDefault=none
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=5,default_queue_depth=1000,batch_sched_delay=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
# Without it one job takes a node's whole memory.
DefMemPerCPU=4000
PriorityType=priority/multifactor
PriorityWeightAge=1000
PriorityWeightFairshare=10000
PriorityWeightQOS=100000
PreemptType=preempt/qos
PreemptMode=REQUEUE
GresTypes=gpu
TopologyPlugin=topology/tree
SlurmctldTimeout=30
SlurmdTimeout=30
KillWait=5
MinJobAge={lab.min_job_age_s}
ReturnToService=1
MaxJobCount=100000
MaxArraySize=10001
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={lab.port + 2}
AccountingStoragePass={munge}
AccountingStorageEnforce=associations,limits,qos
AccountingStorageTRES=gres/gpu,gres/gpu:h100
AccountingStoreFlags=job_comment,job_env,job_script
NodeName=DEFAULT Sockets=2 CoresPerSocket={CPUS_PER_NODE // 2} ThreadsPerCore=1 RealMemory={MEMORY_MIB_PER_NODE} \
Gres=gpu:h100:{lab.gpus_per_node} State=UNKNOWN
NodeName={lab.all_nodes} NodeHostname=localhost NodeAddr=127.0.0.1 Port=[{first}-{last}]
PartitionName=train Nodes={lab.all_nodes} Default=YES MaxTime=7-00:00:00 DefaultTime=01:00:00 PriorityTier=10 State=UP
PartitionName=debug Nodes={lab.all_nodes} MaxTime=00:30:00 DefaultTime=00:10:00 PriorityTier=20 State=UP
PartitionName=one Nodes={lab.node_names[-1]} MaxTime=1-00:00:00 DefaultTime=00:10:00 PriorityTier=10 State=UP
"""


def gres_conf(lab: Layout) -> str:
    """GPUs must have device files: clones of /dev/null do. A bare Count= registers none, and the node is drained."""
    devices = f"{lab.path('dev')}/nvidia[0-{lab.gpus_per_node - 1}]"
    return f"AutoDetect=off\nNodeName={lab.all_nodes} Name=gpu Type=h100 File={devices}\n"


def topology_conf(lab: Layout) -> str:
    lines, leaf = [], 0
    for start in range(1, lab.nodes + 1, lab.nodes_per_leaf):
        leaf += 1
        end = min(start + lab.nodes_per_leaf - 1, lab.nodes)
        lines.append(f"SwitchName=leaf{leaf} Nodes=gpu[{start:03d}-{end:03d}]")
    return "\n".join([*lines, f"SwitchName=spine1 Switches=leaf[1-{leaf}]"]) + "\n"


def cgroup_conf(lab: Layout) -> str:
    return "CgroupPlugin=cgroup/v1\n" if lab.release < (23, 0) else "CgroupPlugin=disabled\n"


def slurmdbd_conf(lab: Layout) -> str:
    """There is no option for MariaDB's socket: slurmdbd is told by MYSQL_UNIX_PORT in its environment."""
    return f"""\
AuthType=auth/munge
AuthInfo=socket={lab.path("munge/munge.sock")}
AuthAltTypes=auth/jwt
AuthAltParameters=jwt_key={lab.path("etc/jwt_hs256.key")}
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={lab.port + 2}
SlurmUser=slurm
LogFile={lab.path("log/slurmdbd.log")}
PidFile={lab.path("run/slurmdbd.pid")}
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=slurm
StoragePass=loopback-only
StorageLoc=slurm_acct_db
"""


ACCOUNTS = (
    "add account llm Description=llm Organization=lab",
    "add account vision Description=vision Organization=lab",
    "add qos high priority=1000",
    "add qos preemptible priority=1",
    "modify qos high set Preempt=normal,preemptible MaxTRESPerUser=gres/gpu=32",
    "add user alice account=llm qos=normal,high,preemptible",
    "add user bob account=vision qos=normal,preemptible",
    "modify account llm set GrpTRES=gres/gpu=96",
)
