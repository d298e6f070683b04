"""Extensions of PostgreSQL: search by part of a name, and ranges that exclude each other. All ship with it."""

from django.contrib.postgres.operations import BtreeGistExtension, TrigramExtension
from django.db import migrations


class Migration(migrations.Migration):
    dependencies = []
    operations = [TrigramExtension(), BtreeGistExtension()]
