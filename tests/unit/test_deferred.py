"""A module that a library imports is loaded when something in it is used."""

import subprocess
import sys

from tests.support.process import ROOT

PROGRAM = """
import sys
from broker.processes.deferred import Deferred, defer
defer("ssl", "hmac", "json")
import ssl, hmac, trio
assert "_ssl" not in sys.modules
assert type(ssl) is type(hmac) is Deferred
assert not hasattr(ssl, "__file__")          # who goes through all modules loads none
context = ssl.create_default_context()
assert type(sys.modules["ssl"]) is not Deferred
from ssl import SSLContext
assert isinstance(context, SSLContext) and isinstance(context, ssl.SSLContext) and ssl.SSLContext is SSLContext
try:
    hmac.nothing
except AttributeError as error:
    print(error)
import json
defer("json")
assert hmac.digest(b"k", b"m", "sha256") and json.loads("[]") == [] and sys.modules["json"].dumps
"""


def test_a_deferred_module_is_loaded_when_something_in_it_is_used_and_has_all_of_it() -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "module 'hmac' has no attribute 'nothing'\n"
