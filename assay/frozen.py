"""The base of every config: frozen, no unknown keys, and no input in errors, which may be a pasted secret."""

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), hide_input_in_errors=True)
