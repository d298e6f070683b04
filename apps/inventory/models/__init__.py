"""Places, machines and clusters."""

from apps.inventory.models.cluster import AcceleratorUse, Cluster, NodeStateChange, Partition
from apps.inventory.models.machine import Accelerator, AcceleratorModel, Node, NodeState, NodeType, WantedOfNode
from apps.inventory.models.place import Hall, Rack, Region, Site

__all__ = [
    "Accelerator",
    "AcceleratorModel",
    "AcceleratorUse",
    "Cluster",
    "Hall",
    "Node",
    "NodeState",
    "NodeStateChange",
    "NodeType",
    "Partition",
    "Rack",
    "Region",
    "Site",
    "WantedOfNode",
]
