"""Forms: from what people type to what the domain takes. What is allowed is decided there, not here."""

from __future__ import annotations

import uuid
from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from apps.accounts.models import HourUnit, Project, Role, User
from apps.accounts.permissions import projects_where
from apps.core.errors import InvalidInput
from apps.core.units import GIB, MIB, parse_duration, parse_memory
from apps.inventory.models import Cluster
from apps.inventory.queries import usable_clusters
from apps.jobs.models import Checkpoint, JobKind
from apps.jobs.queries import latest_checkpoints
from apps.jobs.rights import visible_jobs
from apps.jobs.spec import MAX_SCRIPT_BYTES, JobSpec

_COUNT = {"min_value": 0, "max_value": 2_000_000_000}


class MemoryField(forms.CharField):
    """`16G` <-> bytes."""

    def clean(self, value: Any) -> Any:
        text = super().clean(value)
        if not text:
            return None
        try:
            return parse_memory(text)
        except InvalidInput as error:
            raise forms.ValidationError(error.message.removeprefix("memory: ")) from None


class DurationField(forms.CharField):
    """`2:30:00` <-> seconds."""

    def clean(self, value: Any) -> Any:
        text = super().clean(value)
        if not text:
            return None
        try:
            return parse_duration(text)
        except InvalidInput as error:
            raise forms.ValidationError(error.message.removeprefix("time_limit: ")) from None


class SubmitForm(forms.Form):
    """One job. Choices are what this person may use."""

    key = forms.CharField(widget=forms.HiddenInput, max_length=64)
    copied_from = forms.CharField(widget=forms.HiddenInput, required=False, max_length=24)
    project = forms.ModelChoiceField(Project.objects.none(), to_field_name="name", empty_label=None)
    cluster = forms.ModelChoiceField(Cluster.objects.none(), to_field_name="name", empty_label=None)
    kind = forms.ChoiceField(choices=JobKind.choices)
    name = forms.CharField(strip=True, help_text=_("How you will know it in the list."))
    script = forms.CharField(
        strip=False,
        widget=forms.Textarea(attrs={"rows": 8, "spellcheck": "false"}),
        help_text=_("A command or a whole script. Without a #! line it runs under bash."),
    )
    nodes = forms.IntegerField(**_COUNT)
    accelerators_per_node = forms.IntegerField(**_COUNT, label=_("GPUs per node"))
    cpus_per_node = forms.IntegerField(**_COUNT, label=_("CPUs per node"))
    memory = MemoryField(required=False, label=_("Memory per node"), help_text=_("For example 16G or 512M."))
    time_limit = DurationField(
        required=False, help_text=_("Hours:minutes:seconds like 2:30:00, or 2 h 30 min. The job is ended then.")
    )
    partition = forms.CharField(required=False, strip=True, help_text=_("Empty: the cluster's default."))
    qos = forms.CharField(required=False, strip=True, label=_("QOS"), help_text=_("On Slurm; empty: your default."))
    reservation = forms.CharField(required=False, strip=True, help_text=_("On Slurm: the reservation to run in."))
    constraints = forms.CharField(
        required=False, strip=True, help_text=_("On Slurm: node features it needs, like h100&ib.")
    )
    environment = forms.CharField(
        required=False,
        strip=False,
        widget=forms.Textarea(attrs={"rows": 3, "spellcheck": "false"}),
        help_text=_("One NAME=value a line."),
    )
    working_dir = forms.CharField(
        required=False,
        strip=True,
        label=_("Working folder"),
        help_text=_("Empty: a folder of its own, or on Slurm the site's."),
    )
    parent_checkpoint = forms.TypedChoiceField(required=False, coerce=int, empty_value=None)
    max_retries = forms.IntegerField(
        **_COUNT, label=_("Retries"), help_text=_("How often it is tried again when it fails.")
    )
    tags = forms.CharField(required=False, help_text=_("Words with spaces between them."))
    hold = forms.BooleanField(required=False, label=_("Hold"), help_text=_("Do not start it until I release it."))

    def __init__(self, *args: Any, user: User, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.user = user
        self.fields["project"].queryset = projects_where(user, "job.submit").filter(is_active=True)
        self.fields["cluster"].queryset = usable_clusters()
        for field in self.fields.values():
            field.widget.attrs.setdefault("autocomplete", "off")

    def offer_checkpoints(self) -> None:
        """Fill the list of checkpoints to start from: the newest of each of the latest jobs, and the one chosen."""
        offered = {str(c.pk): _checkpoint_label(c) for c in latest_checkpoints(self.user)}
        chosen = str(self["parent_checkpoint"].value() or "")
        if chosen.isdecimal() and chosen not in offered:
            found = Checkpoint.objects.filter(pk=int(chosen), job__in=visible_jobs(self.user)).first()
            if found is not None:
                offered[chosen] = _checkpoint_label(found)
        self.fields["parent_checkpoint"].choices = [("", "none"), *offered.items()]

    def clean_environment(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for number, line in enumerate(self.cleaned_data["environment"].replace("\r\n", "\n").split("\n"), 1):
            if not line.strip():
                continue
            name, is_set, value = line.partition("=")
            if not is_set:
                raise forms.ValidationError(f"Line {number} has no “=”; write NAME=value.")
            if name.strip() in found:
                raise forms.ValidationError(f"Line {number}: {name.strip()!r} is there twice.")
            found[name.strip()] = value
        return found

    def clean_script(self) -> str:
        script: str = self.cleaned_data["script"]
        if len(script) > 4 * MAX_SCRIPT_BYTES:  # further checks are the domain's; this one spares it the work
            raise forms.ValidationError(f"The script has {len(script):,} characters; 1 MiB is the limit.")
        return script

    def to_spec(self) -> JobSpec:
        data = self.cleaned_data
        return JobSpec(
            name=data["name"],
            kind=data["kind"],
            script=data["script"],
            environment=data["environment"],
            working_dir=data["working_dir"] or None,
            partition=data["partition"] or None,
            nodes=data["nodes"],
            accelerators_per_node=data["accelerators_per_node"],
            cpus_per_node=data["cpus_per_node"],
            memory_bytes_per_node=data["memory"],
            time_limit_s=data["time_limit"],
            qos=data["qos"] or None,
            reservation=data["reservation"] or None,
            constraints=data["constraints"] or None,
            parent_checkpoint=data["parent_checkpoint"],
            max_retries=data["max_retries"],
            tags=tuple(data["tags"].split()),
        )

    # Names of the domain whose field here has another name.
    FIELD_NAMES = {"memory_bytes_per_node": "memory", "time_limit_s": "time_limit"}


def initial_from_spec(spec: JobSpec) -> dict[str, Any]:
    """What the form shows for a spec."""
    return {
        "key": uuid.uuid4().hex,
        "kind": spec.kind,
        "name": spec.name,
        "script": spec.script,
        "nodes": spec.nodes,
        "accelerators_per_node": spec.accelerators_per_node,
        "cpus_per_node": spec.cpus_per_node,
        "memory": memory_text(spec.memory_bytes_per_node),
        "time_limit": duration_text(spec.time_limit_s),
        "partition": spec.partition or "",
        "qos": spec.qos or "",
        "reservation": spec.reservation or "",
        "constraints": spec.constraints or "",
        "environment": "\n".join(f"{name}={value}" for name, value in spec.environment.items()),
        "working_dir": spec.working_dir or "",
        "parent_checkpoint": spec.parent_checkpoint or "",
        "max_retries": spec.max_retries,
        "tags": " ".join(spec.tags),
    }


def memory_text(size_bytes: int | None) -> str:
    """Exactly, in a form the field reads again: `2G`, `512M`, else bytes."""
    if size_bytes is None:
        return ""
    for unit, letter in ((GIB, "G"), (MIB, "M")):
        if size_bytes % unit == 0:
            return f"{size_bytes // unit}{letter}"
    return str(size_bytes)


def duration_text(seconds: int | None) -> str:
    if seconds is None:
        return ""
    days, rest = divmod(seconds, 86400)
    clock = f"{rest // 3600:02d}:{rest % 3600 // 60:02d}:{rest % 60:02d}"
    return f"{days}-{clock}" if days else clock


def _checkpoint_label(checkpoint: Checkpoint) -> str:
    step = f", step {checkpoint.step:,}" if checkpoint.step is not None else ""
    return f"{checkpoint.job.name[:60]} — {checkpoint.path[:60]}{step}"


class IdentityForm(forms.Form):
    """As whom a person's jobs run on a cluster that has users of its own."""

    cluster = forms.ModelChoiceField(Cluster.objects.none(), to_field_name="name", empty_label=None)
    unix_user = forms.CharField(
        required=False, strip=True, label=_("Unix user"), help_text=_("Empty: the person can submit nothing there.")
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["cluster"].queryset = Cluster.objects.exclude(scheduler="local")

    def any_cluster(self) -> bool:
        return self.fields["cluster"].queryset.exists()


class PersonForm(forms.Form):
    username = forms.CharField(max_length=150, help_text=_("Letters, digits and @ . + - _"))
    first_name = forms.CharField(max_length=150, required=False)
    last_name = forms.CharField(max_length=150, required=False)
    email = forms.EmailField(required=False)
    is_operator = forms.BooleanField(
        required=False, label=_("Operator"), help_text=_("Sees everything and runs the site.")
    )


class EditPersonForm(PersonForm):
    username = None  # type: ignore[assignment]
    is_active = forms.BooleanField(required=False, label=_("Active"), help_text=_("Who is not active cannot sign in."))


class AccountForm(forms.Form):
    first_name = forms.CharField(max_length=150, required=False)
    last_name = forms.CharField(max_length=150, required=False)
    email = forms.EmailField(required=False)


class PasswordForm(forms.Form):
    old = forms.CharField(
        label=_("Password now"), strip=False, widget=forms.PasswordInput(attrs={"autocomplete": "current-password"})
    )
    new = forms.CharField(
        label=_("New password"),
        strip=False,
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
        help_text=_("At least 10 characters, and none of the common ones."),
    )
    again = forms.CharField(
        label=_("New password again"), strip=False, widget=forms.PasswordInput(attrs={"autocomplete": "new-password"})
    )

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        if data.get("new") and data.get("again") and data["new"] != data["again"]:
            self.add_error("again", "The two are not the same.")
        return data


class TokenForm(forms.Form):
    name = forms.CharField(max_length=100, help_text=_("What will use it."))
    days = forms.IntegerField(initial=90, min_value=1, max_value=365, label=_("Days to live"))


class ProjectForm(forms.Form):
    name = forms.SlugField(max_length=60, help_text=_("Short, without spaces; it cannot be changed later."))
    title = forms.CharField(max_length=200, required=False)
    description = forms.CharField(max_length=4000, required=False, widget=forms.Textarea(attrs={"rows": 3}))
    lead = forms.CharField(max_length=150, required=False, help_text=_("Name of the person who leads it."))
    is_metered = forms.BooleanField(
        required=False, initial=True, label=_("Metered"), help_text=_("Jobs need hours from an allocation.")
    )


class EditProjectForm(forms.Form):
    title = forms.CharField(max_length=200, required=False)
    description = forms.CharField(max_length=4000, required=False, widget=forms.Textarea(attrs={"rows": 3}))
    is_active = forms.BooleanField(required=False, label=_("Open"), help_text=_("A closed project takes no new jobs."))


class MemberForm(forms.Form):
    person = forms.CharField(max_length=150, help_text=_("Their name for signing in."))
    role = forms.ChoiceField(choices=Role.choices, initial=Role.MEMBER)


class GrantForm(forms.Form):
    unit = forms.ChoiceField(choices=HourUnit.choices)
    hours = forms.DecimalField(max_digits=18, decimal_places=6)
    ends_on = forms.DateField(
        required=False, widget=forms.DateInput(attrs={"type": "date"}), help_text=_("Empty: never.")
    )
    note = forms.CharField(max_length=300, required=False)


class ClusterForm(forms.Form):
    title = forms.CharField(max_length=120, required=False)
    is_enabled = forms.BooleanField(
        required=False, label=_("On"), help_text=_("An off cluster takes no jobs, is not asked.")
    )
