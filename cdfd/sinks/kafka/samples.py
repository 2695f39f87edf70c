"""Records of a sample, and their schemas, of which nothing is registered."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from cdfd.encode.registered import Kind, Schemas
from cdfd.errors import SchemaChangedError, SinkError
from cdfd.sinks.base import SampleSchema


@dataclass(eq=False)
class KnownSchemas:
    """A registry that is asked for ids alone. A schema without an id has 0 in its frame.

    Attributes:
        schemas: the registry, which looks schemas up and registers none.

    Attributes:
        samples: the schemas that were asked for.
    """

    schemas: Schemas
    samples: list[SampleSchema] = field(default_factory=list, init=False)

    def register(self, subject: str, schema: str, kind: Kind) -> int:
        """The id of a schema; 0 if the registry does not have it, or does not answer."""
        number = 0
        try:
            number = self.schemas.register(subject, schema, kind)
            state = f"id {number}"
        except SchemaChangedError:
            state = "not registered yet"
        except SinkError as error:
            state = f"id unknown: {error.what}"
        self.samples.append(SampleSchema(subject, kind, schema, state))
        return number

    def history(self, subject: str) -> Sequence[str]:
        """The schemas of a subject; none if the registry does not answer."""
        try:
            return self.schemas.history(subject)
        except SinkError:
            return ()

    def check(self, kind: Kind) -> None:
        """As of the registry."""
        self.schemas.check(kind)
