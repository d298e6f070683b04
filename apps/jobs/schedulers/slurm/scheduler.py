"""Slurm as a Scheduler: every call in the name of the person whose job it is, by a token that lasts minutes."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from apps.jobs.schedulers.base import (
    ActionRefused,
    Changes,
    ClusterView,
    NoSuchJob,
    ObservedJob,
    ObservedNode,
    ObservedPartition,
    SchedulerError,
    SchedulerUnavailable,
    Submission,
    SubmitRefused,
    SubmitUncertain,
)
from apps.jobs.schedulers.slurm import translate
from apps.jobs.schedulers.slurm.client import NothingAsked, NotThere, Refused, Reply, SlurmRest
from apps.jobs.schedulers.slurm.commands import CommandFailed, SlurmCommands
from apps.jobs.schedulers.slurm.listing import Listing, job_list
from apps.jobs.schedulers.slurm.submission import submit_body, unaccepted
from apps.jobs.schedulers.slurm.tokens import (
    CommandTokens,
    FileTokens,
    MintedTokens,
    NoTokens,
    Tokens,
    key_is_open,
)
from apps.jobs.schedulers.slurm.translate import Doubts
from apps.jobs.states import FINAL, JobState

log = logging.getLogger(__name__)

HELD_CODE = 2042
_ENDED_CODES = {2021}  # the job has ended: nothing left to do
_NOT_WAITING_CODES = {2073, 2024}
_NOBODYS_CODES = {2002, 2010}
_OWNERS_KEPT = 20_000


class SlurmScheduler:
    """`url` is slurmrestd's (`http://host:6820`), or any with `socket` for a unix socket.

    Tokens come from `jwt_key_file` (the cluster's key), `token_command` or `token_file`. `reader` is the unix user in
    whose name we look; `admin` the one in whose name nodes are drained, None where we may not. `default_folder` is
    where a job without a folder of its own starts: `{user}` in it is its owner. `commands` True: Slurm's commands are
    installed here (`slurm_conf`, `bin_dir`), which makes polls of large queues a hundred times cheaper.
    `log_url` and `log_ca`, where jobs send their output, are jobs.dispatch's to use.
    """

    def __init__(
        self,
        url: str,
        *,
        socket: str | None = None,
        jwt_key_file: str | None = None,
        token_command: Sequence[str] | None = None,
        token_file: str | None = None,
        reader: str = "root",
        admin: str | None = None,
        cluster_name: str | None = None,
        api_version: str | None = None,
        timeout_s: float = 30.0,
        ca_file: str | None = None,
        commands: bool = False,
        slurm_conf: str | None = None,
        bin_dir: str | None = None,
        poll: str = "auto",
        default_folder: str = "/home/{user}",
        environment: Mapping[str, str] | None = None,
        accepted_warnings: Sequence[str] = (),
        log_url: str | None = None,
        log_ca: str | None = None,
    ) -> None:
        self._tokens = _tokens(jwt_key_file, token_command, token_file)
        self._key_file = jwt_key_file
        self._rest = SlurmRest(
            url,
            self._tokens,
            socket=socket,
            cluster_name=cluster_name,
            api_version=api_version,
            timeout_s=timeout_s,
            ca_file=ca_file,
        )
        self._commands = SlurmCommands(self._tokens, conf=slurm_conf, bin_dir=bin_dir) if commands else None
        self._reader, self._admin = reader, admin
        self._listing = Listing(self._rest, self._commands, reader, poll)
        self._default_folder = default_folder
        self._environment = dict(environment or {})
        self._accepted_warnings = tuple(accepted_warnings)
        self._owners: OrderedDict[str, str] = OrderedDict()
        self._owners_lock = threading.Lock()

    # -- submitting -----------------------------------------------------------------------------------------------

    def submit_held(self, submission: Submission) -> str:
        user = submission.run_as.unix_user
        body = self._body(submission, hold=True)
        try:
            reply = self._rest.post(user, "job/submit", body)
        except NothingAsked as error:
            raise SchedulerUnavailable(str(error)) from None
        except (Refused, NotThere) as error:
            # 22.05 tells as an error that the job is held, which it was asked to be.
            if isinstance(error, Refused) and error.code == HELD_CODE and error.body.get("job_id"):
                return self._made(submission, Reply(error.body, (), ()))
            self._end_if_made(submission, str(error))
            raise SubmitRefused(str(error)) from None
        except SchedulerUnavailable as error:  # the answer is lost, or slurmctld did not answer slurmrestd
            raise SubmitUncertain(str(error)) from None
        return self._made(submission, reply)

    def _made(self, submission: Submission, reply: Reply) -> str:
        told = reply.body.get("result")
        result: Mapping[str, Any] = told if isinstance(told, Mapping) else {}
        external_id = reply.body.get("job_id") or result.get("job_id")
        code = result.get("error_code") or 0
        wrong = unaccepted(reply.warnings, self._accepted_warnings)
        if code not in {0, HELD_CODE}:
            wrong.append(str(result.get("error") or f"error {code}"))
        if wrong:
            self._end_if_made(submission, "; ".join(wrong))
            raise SubmitRefused("; ".join(wrong))
        if not external_id:
            raise SubmitUncertain("Slurm's answer to the submit holds no job id")
        self._remember_owner(str(external_id), submission.run_as.unix_user)
        return str(external_id)

    def _end_if_made(self, submission: Submission, why: str) -> None:
        """After any error: a job that came about all the same must not stay. Raises SubmitUncertain if that fails."""
        try:
            found = self.find_by_token(submission.token)
            if found is not None and found.state not in FINAL:
                self.cancel(found.external_id)
        except SchedulerError as error:
            raise SubmitUncertain(f"{why}; and whether a job was made cannot be found out: {error}") from None

    def _body(self, submission: Submission, *, hold: bool) -> dict[str, Any]:
        user = submission.run_as.unix_user
        folder = submission.working_dir or self._default_folder.replace("{user}", user)
        return submit_body(
            submission, self._rest.version(user), folder=folder, environment=self._environment, hold=hold
        )

    def find_by_token(self, token: str) -> ObservedJob | None:
        doubts = Doubts()
        if self._commands is not None and self._commands.are_there():
            for record in self._commands.squeue(self._reader):
                if translate.token_in(record.get("comment")) == token:
                    found = self._listing.records([str(record["job_id"])], doubts)
                    return next((job for job in found if job.token == token), None)
            return None
        for listed in job_list(self._rest.get(self._reader, "jobs/").body):
            if translate.token_in(listed.get("comment"), listed.get("admin_comment"), listed.get("extra")) == token:
                return translate.job(listed, doubts)
        return None

    # -- controlling ----------------------------------------------------------------------------------------------

    def release(self, external_id: str) -> None:
        self._update(external_id, {"hold": False})

    def hold(self, external_id: str) -> None:
        self._update(external_id, {"hold": True})

    def _update(self, external_id: str, values: dict[str, Any]) -> None:
        def ask(user: str) -> None:
            # On 22.05 an update knows no environment; on later ones it need not have one.
            self._rest.post(user, f"job/{external_id}", values)

        try:
            self._as_owner(external_id, ask)
        except Refused as error:
            if error.code in _ENDED_CODES | _NOT_WAITING_CODES or self._has_started(external_id):
                return
            raise ActionRefused(str(error)) from None

    def _has_started(self, external_id: str) -> bool:
        return any(job.state != JobState.PENDING for job in self.jobs([external_id]))

    def cancel(self, external_id: str, reason: str = "") -> None:
        def ask(user: str) -> None:
            self._rest.delete(user, f"job/{external_id}")

        try:
            self._as_owner(external_id, ask)
        except Refused as error:
            if error.code in _ENDED_CODES:
                return
            raise ActionRefused(str(error)) from None

    def _as_owner(self, external_id: str, ask: Any) -> None:
        """In the name of the job's owner. One remembered may be of an older job of the same id: asked anew then."""
        if not external_id.isdecimal():
            raise NoSuchJob(f"Slurm has no job {external_id}")
        with self._owners_lock:
            kept = self._owners.get(external_id)
        if kept is not None:
            try:
                ask(kept)
                return
            except (Refused, NotThere) as error:
                if isinstance(error, Refused) and error.code not in _NOBODYS_CODES:
                    raise
        found = self.jobs([external_id])
        if not found:
            raise NoSuchJob(f"Slurm has no job {external_id}")
        if all(job.state in FINAL for job in found):
            return
        owner = found[-1].unix_user
        if owner is None:
            raise ActionRefused(f"Slurm does not say whose job {external_id} is")
        self._remember_owner(external_id, owner)
        try:
            ask(owner)
        except NotThere as error:
            raise NoSuchJob(str(error)) from None

    def _remember_owner(self, external_id: str, user: str) -> None:
        with self._owners_lock:
            self._owners[external_id] = user
            self._owners.move_to_end(external_id)
            while len(self._owners) > _OWNERS_KEPT:
                self._owners.popitem(last=False)

    # -- looking --------------------------------------------------------------------------------------------------

    def changes(self, cursor: str | None) -> Changes:
        return self._listing.changes(cursor)

    def jobs(self, external_ids: Sequence[str]) -> list[ObservedJob]:
        return self._listing.records([key for key in external_ids if key.isdecimal()], Doubts())

    def nodes(self) -> ClusterView:
        doubts = Doubts()
        nodes = self._rest.get(self._reader, "nodes/").body.get("nodes")
        partitions = self._rest.get(self._reader, "partitions/").body.get("partitions")
        if not isinstance(nodes, list) or not isinstance(partitions, list):
            raise SchedulerUnavailable("Slurm's answer holds no list of nodes or of partitions")
        found = [translate.node(record, doubts) for record in nodes if isinstance(record, Mapping)]
        queues = [translate.partition(record, doubts) for record in partitions if isinstance(record, Mapping)]
        there = [node for node in found if node is not None]
        return ClusterView(
            nodes=tuple(there),
            partitions=tuple(_within_nodes(queue, there) for queue in queues if queue is not None),
            notes=(*self._notes(), *(f"Not known here: {what} ({count:,} times)." for what, count in doubts.items())),
        )

    def _notes(self) -> list[str]:
        notes = []
        if self._key_file is not None and key_is_open(self._key_file):
            notes.append(
                "The cluster's JWT key is not isolated: other processes of this install run as the user who can read "
                "it. `manage.py doctor` says what to do."
            )
        return notes

    # -- nodes ----------------------------------------------------------------------------------------------------

    def set_nodes(self, names: Sequence[str], action: str, reason: str = "") -> None:
        """Drain or resume nodes in the name of the site's `admin`: over REST from v0.0.40 on, else with scontrol."""
        if self._admin is None:
            raise ActionRefused("This cluster has no admin set up, so nodes can only be looked at.")
        try:
            if action == "resume":
                names = self._to_resume(names)
            if not names:
                return
            if self._rest.version(self._admin) >= 40:
                for name in names:
                    body: dict[str, Any] = {"state": [action.upper()], **({"reason": reason} if reason else {})}
                    self._rest.post(self._admin, f"node/{name}", body)
            elif self._commands is not None:
                values = {"State": action.upper(), **({"Reason": reason} if reason else {})}
                self._commands.update_nodes(self._admin, ",".join(names), values)
            else:
                raise ActionRefused("This slurmrestd is too old to do it, and Slurm's commands are not set up here.")
        except (Refused, NotThere, CommandFailed) as error:
            raise ActionRefused(str(error)) from None

    def _to_resume(self, names: Sequence[str]) -> list[str]:
        """Those that are drained or down: Slurm refuses a whole list for one node that needs no resume."""
        listed = {node.name: node for node in self.nodes().nodes}
        if unknown := [name for name in names if name not in listed]:
            raise ActionRefused(f"Slurm has no node {unknown[0]}")
        return [name for name in names if listed[name].state in {"drained", "draining", "down"}]


def _within_nodes(queue: ObservedPartition, nodes: Sequence[ObservedNode]) -> ObservedPartition:
    """The partition with what its largest node has as the limit, where it names none: more can never start."""
    mine = [node for node in nodes if queue.name in node.partitions]
    if not mine:
        return queue
    memory = [node.memory_bytes for node in mine if node.memory_bytes is not None]
    return replace(
        queue,
        max_nodes_per_job=min(queue.max_nodes_per_job or len(mine), len(mine)),
        max_cpus_per_node=min(queue.max_cpus_per_node or 10**9, max(node.cpus for node in mine)),
        max_memory_bytes_per_node=max(memory) if memory else None,
        max_accelerators_per_node=max(node.accelerator_count or 0 for node in mine),
    )


def _tokens(key_file: str | None, command: Sequence[str] | None, file: str | None) -> Tokens:
    given = [value for value in (key_file, command, file) if value]
    if len(given) > 1:
        raise TypeError("give only one of jwt_key_file, token_command and token_file")
    if key_file:
        return MintedTokens(key_file)
    if command:
        return CommandTokens(command)
    return FileTokens(file) if file else NoTokens()
