"""`manage.py connect_slurm NAME --url ...`: make or change the row of a Slurm cluster, after asking it a question."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.core.validators import validate_slug

from apps.inventory.actions import ensure_cluster
from apps.inventory.models import Cluster
from apps.jobs.reconcile import poll_nodes
from apps.jobs.schedulers.base import SchedulerError
from apps.jobs.schedulers.registry import scheduler_for

_TEXTS = {
    "url": "slurmrestd's address, like http://slurm1:6820",
    "socket": "its unix socket, where it listens on one; --url is then only a name",
    "jwt_key_file": "the cluster's HS256 key; readable by the cluster workers alone",
    "token_file": "a file that holds a token the site renews",
    "reader": "the unix user in whose name jobs and nodes are looked at",
    "admin": "the unix user in whose name nodes are drained; none: they can only be looked at",
    "cluster_name": "Slurm's ClusterName; an answer of another cluster is refused",
    "api_version": "like v0.0.41; none: the newest both sides know",
    "ca_file": "certificates to trust for https",
    "slurm_conf": "slurm.conf for Slurm's commands, with --commands",
    "bin_dir": "where Slurm's commands are, with --commands",
    "default_folder": "where jobs start that name no folder; {user} in it is the job's owner",
    "log_url": "how nodes reach this product, so that jobs send their output here",
}


class Command(BaseCommand):
    help = "Connects a Slurm cluster. Run it where the cluster workers run: they are who must reach Slurm."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", help="the cluster's short name here")
        parser.add_argument("--title", default="", help="its name for people")
        for name, text in _TEXTS.items():
            parser.add_argument(f"--{name.replace('_', '-')}", help=text)
        parser.add_argument("--token-command", nargs="+", help="prints a token for the user named as last argument")
        parser.add_argument("--commands", action="store_true", help="Slurm's own commands are installed here")
        parser.add_argument("--simulated", action="store_true", help="mark it as simulated everywhere")
        parser.add_argument("--off", action="store_true", help="write the row, but do not switch it on")

    def handle(self, *args: Any, **options: Any) -> None:
        name = options["name"]
        validate_slug(name)
        known = Cluster.objects.filter(name=name).first()
        if known is not None and known.scheduler != "slurm" and known.nodes.exists() and known.poll_succeeded_at:
            raise CommandError(f"{name} is a cluster of another kind ({known.scheduler}).")
        config = dict(known.config) if known is not None and known.scheduler == "slurm" else {}
        config |= {key: options[key] for key in (*_TEXTS, "token_command") if options[key] is not None}
        config |= {"commands": True} if options["commands"] else {}
        if not config.get("url"):
            raise CommandError("--url is needed.")
        for key in ("jwt_key_file", "slurm_conf", "ca_file"):
            if config.get(key):
                config[key] = str(Path(config[key]).absolute())
        try:
            view = scheduler_for("slurm", config).nodes()
        except SchedulerError as error:
            if not options["off"]:
                raise CommandError(
                    f"{error}\nNothing was changed. With --off the row is written all the same."
                ) from None
        else:
            self.stdout.write(f"{len(view.nodes):,} nodes, {len(view.partitions)} partitions")
            for note in view.notes:
                self.stdout.write(f"note: {note}")
        cluster = ensure_cluster(name, title=options["title"] or name, scheduler="slurm", config=config)
        Cluster.objects.filter(pk=cluster.pk).update(is_enabled=not options["off"], is_simulated=options["simulated"])
        if not options["off"]:
            poll_nodes(cluster.pk)
        self.stdout.write(f"{name} is {'written, switched off' if options['off'] else 'connected'}.")
