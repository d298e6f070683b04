"""The beat table: every period and deadline in one place. Imports nothing, since the settings read it.

A task that is not started within `expires` seconds is dropped: the next tick does the same work, and a queue that has
been stuck must not replay an hour of polls.
"""

from __future__ import annotations

RECONCILE_EVERY_S = 2
RECOVER_EVERY_S = 5
POLL_NODES_EVERY_S = 15
TIDY_EVERY_S = 3600

BEAT_SCHEDULE = {
    "reconcile-clusters": {
        "task": "jobs.reconcile_all",
        "schedule": RECONCILE_EVERY_S,
        "options": {"expires": RECONCILE_EVERY_S},
    },
    "recover-jobs": {
        "task": "jobs.recover",
        "schedule": RECOVER_EVERY_S,
        "options": {"expires": RECOVER_EVERY_S},
    },
    "poll-nodes": {
        "task": "jobs.poll_nodes_all",
        "schedule": POLL_NODES_EVERY_S,
        "options": {"expires": POLL_NODES_EVERY_S},
    },
    "tidy": {"task": "jobs.tidy", "schedule": TIDY_EVERY_S, "options": {"expires": TIDY_EVERY_S}},
}
