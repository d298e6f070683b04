"""docker-compose.yml, Dockerfile and .env.example say what is true. No engine runs them here."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from tests.harness import BASE_DIR

COMPOSE: dict[str, Any] = yaml.safe_load((BASE_DIR / "docker-compose.yml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
READ_NAMES = set(
    re.findall(r'"((?:SWITCHYARD_|DATABASE_|REDIS_|EMAIL_)[A-Z_]+)"', (BASE_DIR / "config" / "env.py").read_text())
)
SLURM_KEYS = "./secrets/slurm"


def test_only_the_worker_that_talks_to_slurm_gets_the_clusters_keys():
    mounts = {name: [one for one in service["volumes"] if SLURM_KEYS in one] for name, service in SERVICES.items()}
    assert {name: found for name, found in mounts.items() if found} == {
        "worker-clusters": [f"{SLURM_KEYS}:/run/slurm:ro"]
    }


def test_every_role_is_there():
    assert set(SERVICES) == {"postgres", "redis", "migrate", "web", "worker", "worker-clusters", "beat"}


@pytest.mark.parametrize("name", list(SERVICES))
def test_a_service_restarts_has_a_health_check_and_asks_only_for_what_is_defined(name):
    service = SERVICES[name]
    assert service["restart"] in {"unless-stopped", "on-failure"}
    assert "healthcheck" in service
    named = {volume.split(":")[0] for volume in service["volumes"]} - {SLURM_KEYS}
    assert named <= set(COMPOSE["volumes"])
    assert set(service.get("secrets", [])) <= set(COMPOSE["secrets"])
    for other in service.get("depends_on", {}):
        assert other in SERVICES


@pytest.mark.parametrize("name", ["migrate", "web", "worker", "worker-clusters", "beat"])
def test_our_roles_set_only_variables_that_are_read(name):
    names = {variable.removesuffix("_FILE") for variable in SERVICES[name]["environment"]}
    assert names <= READ_NAMES
    assert {"SWITCHYARD_SECRET_KEY", "DATABASE_URL", "REDIS_URL"} <= names


def test_no_secret_has_a_value_and_every_one_is_a_file():
    for service in SERVICES.values():
        for name, value in service.get("environment", {}).items():
            if re.search("PASSWORD|SECRET|DATABASE_URL", name):
                assert name.endswith("_FILE"), name
                assert str(value).startswith("/run/secrets/"), name
    assert all(set(secret) == {"file"} for secret in COMPOSE["secrets"].values())


def test_only_this_machine_can_reach_the_published_port():
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert ports == ["127.0.0.1:8420:8000"]


def test_the_image_is_not_run_by_root_and_is_installed_by_hash():
    lines = (BASE_DIR / "Dockerfile").read_text().splitlines()
    assert "USER switchyard" in lines
    assert any("--require-hashes" in line for line in lines)


def test_the_example_environment_explains_every_variable_and_no_other():
    text = (BASE_DIR / ".env.example").read_text()
    named = {name.removesuffix("_FILE") for name in re.findall(r"^([A-Z_]+)=", text, re.MULTILINE)}
    assert named == READ_NAMES
    for block in text.split("\n# ")[1:]:
        assert len(block.split("=")[0]) > 30, block


def test_no_file_of_ours_names_a_registry():
    for name in ("requirements.lock", "requirements-dev.lock", "pyproject.toml", "Makefile", "lab/setup.sh"):
        assert "://" not in (BASE_DIR / name).read_text(), name
