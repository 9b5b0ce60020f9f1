"""The document of /api/v1: a whole one, and it has every route that there is."""

from typing import Any

import msgspec
from openapi_spec_validator import OpenAPIV31SpecValidator

from broker.admin.api import Admin
from broker.admin.openapi import ARGUMENTS, DESCRIBED, document, path_of
from broker.admin.rest import Api
from broker.config.http import Http

ELSEWHERE = {("GET", "/live"), ("GET", "/ready")}  # /livez and /readyz, which ask for no login


class Nobody:
    """A backend that is not asked."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)


def test_the_document_is_one() -> None:
    found = msgspec.json.decode(msgspec.json.encode(document(Api(Nobody(), Http()).routes)))
    OpenAPIV31SpecValidator(found).validate()
    operations = [one["operationId"] for path in found["paths"].values() for one in path.values()]
    assert len(set(operations)) == len(operations)


def test_every_route_is_in_it_with_all_its_arguments() -> None:
    routes = Api(Nobody(), Http()).routes
    paths = document(routes)["paths"]
    assert {(route.method, "/" + "/".join(route.path)) for route in routes} == {*DESCRIBED}
    asked_there = {(route.method, "/" + "/".join(route.path)) for route in Admin(Nobody()).routes}
    assert asked_there - {*DESCRIBED} == ELSEWHERE
    assert {name for route in routes for name in route.arguments} == set(ARGUMENTS)
    for route in routes:
        operation = paths[path_of(route)][route.method.lower()]
        asked = {one["name"]: one["required"] for one in operation["parameters"] if one["in"] == "query"}
        if "requestBody" in operation:
            schema = operation["requestBody"]["content"]["application/json"]["schema"]
            asked |= {name: name in schema["required"] for name in schema["properties"]}
        assert asked == {name: name in route.required for name in route.arguments}, route.path
        assert path_of(route).count("{") == sum(one["in"] == "path" for one in operation["parameters"])
