"""The token library makes its own table although ours stands in for it; nothing would ever write to it."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("accounts", "0001_initial"), ("knox", "0009_extend_authtoken_field")]

    operations = [migrations.RunSQL("DROP TABLE IF EXISTS knox_authtoken", migrations.RunSQL.noop)]
