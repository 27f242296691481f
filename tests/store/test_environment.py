"""The environment record goes through JSON and names nobody."""

import getpass
import json
import platform

from rankrise.store import environment


def test_record_goes_through_json_and_names_nobody():
    record = environment()
    text = json.dumps(record)
    assert json.loads(text) == record
    assert record["packages"]["torch"]
    assert platform.node() not in text or not platform.node()
    user = getpass.getuser()
    assert f"/{user}" not in text
