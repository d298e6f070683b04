"""The tests' own services are the real ones."""

from django.core.cache import cache
from django.db import connection


def test_the_database_is_postgresql_18_or_the_systems(db):
    with connection.cursor() as cursor:
        cursor.execute("SHOW server_version")
        assert int(cursor.fetchone()[0].split(".")[0]) >= 15


def test_the_cache_is_a_real_server(db):
    cache.set("a", 1)
    assert cache.get("a") == 1
