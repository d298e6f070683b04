from __future__ import annotations
from pathlib import Path
import pytest
from django.core.management import call_command
EX = Path(__file__).resolve().parents[2] / "examples/site.yaml"
def test_x(db, cast, client):
    from django.core.files.uploadedfile import SimpleUploadedFile as S
    from apps.inventory.models import NodeType, Node, AcceleratorModel, Rack
    call_command("load_catalogue", verbosity=0)
    client.force_login(cast.rex)
    r=client.post("/site/manifest/", {"manifest": S("site.yaml", EX.read_bytes())})
    print(r.status_code, r.content.decode()[-1500:])
    r=client.post("/site/manifest/", {"text": EX.read_text().replace("\n","\r\n"), "file_name":"site.yaml","apply":"1"}, follow=True)
    print(r.status_code, r.content.decode()[-3000:])
    r=client.get("/site/add/node/?parent=%d" % Rack.objects.first().pk)
    print(r.status_code)
    r=client.post("/site/manifest/", {"manifest": S("site.yaml", b"version: 1\nregons: []")})
    print(r.status_code, r.content.decode()[-1500:])
    r=client.post("/site/import/", {"file": S("n.csv", Path("/work/shared/cases/inventory/bom-utf8.csv").read_bytes())})
    print(r.status_code, r.content.decode()[-1500:])
    n=Node.objects.first()
    for u in ["/site/","/nodes/","/nodes/?q=gpu[001-003]",f"/nodes/{n.pk}/",f"/site/halls/{n.rack.hall_id}/",f"/site/edit/node/{n.pk}/", f"/site/edit/rack/{n.rack_id}/", "/site/catalogue/","/clusters/","/clusters/alpha/"]:
        r=client.get(u); print(u, r.status_code)
    assert 0
