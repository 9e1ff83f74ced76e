"""The OpenAPI description: what FastAPI finds in the routes, and the models of the bodies that they read themselves."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema


def describe(app: FastAPI, *models: type[BaseModel]) -> None:
    """Makes the application's description include the schemas of `models`."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _described(app, models)
        return app.openapi_schema

    app.openapi = openapi


def _described(app: FastAPI, models: tuple[type[BaseModel], ...]) -> dict[str, Any]:
    described = get_openapi(
        title=app.title, version=app.version, summary=app.summary, description=app.description, routes=app.routes
    )
    _, schemas = models_json_schema(
        [(model, "validation") for model in models], ref_template="#/components/schemas/{model}"
    )
    components = described.setdefault("components", {}).setdefault("schemas", {})
    components |= schemas.get("$defs", {})
    return described
