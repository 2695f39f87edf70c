"""`cdfd_changes('lake/orders', 3, 9)` in SQL: a table-valued function whose rows are those of `cdfd.spark.changes`.

Spark calls it while it analyzes a query, and replaces the call by the plan of the DataFrame. So Spark's own reader reads, with pushed
filters. Python's own table functions (`udtf`) give row by row, in one task.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cdfd.errors import ConfigError
from cdfd.spark.source.short_errors import ShortErrors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAME = "cdfd_changes"

_MOST = 3
_TEXT, _PLAIN = "string", {"tinyint", "smallint", "int", "bigint", "boolean", "void"}
_HINT = f"Write {NAME}('table', first version, last version), and more options by name, such as refine => 'key'"


class _Function:
    """The function as Scala's `Seq[Expression] => LogicalPlan`.

    Args:
        make: makes the DataFrame of the arguments and options.
    """

    class Java:
        """Py4J looks for the interfaces here."""

        implements = ("scala.Function1",)

    def __init__(self, make: Callable[..., DataFrame]) -> None:
        self._make = make

    @ShortErrors()
    def apply(self, arguments: Any) -> Any:
        """The plan of the rows. Called by the JVM, with the expressions of a call."""
        places, names = list[object](), dict[str, Any]()
        expressions = arguments.iterator()
        while expressions.hasNext():
            expression = expressions.next()
            if expression.getClass().getSimpleName() == "NamedArgumentExpression":
                names[expression.key()] = _value(expression.value())
            else:
                places.append(_value(expression))
        if not 1 <= len(places) <= _MOST or not isinstance(places[0], str):
            raise ConfigError(f"{NAME} takes a table and at most two versions without names", hint=_HINT)
        ordinals = names.pop("ordinals", False)
        if not isinstance(ordinals, bool):
            raise ConfigError(f"ordinals is {ordinals!r:.100}, but is true or false", hint=_HINT)
        return self._make(*places, options=names, ordinals=ordinals)._jdf.queryExecution().analyzed()


def register(spark: SparkSession, changes: Callable[..., DataFrame]) -> None:
    """Register the function in a session. Sessions of Spark Connect have no functions of the driver's.

    Args:
        spark: the session.
        changes: `cdfd.spark.changes`.
    """
    own: Any = getattr(spark, "_jsparkSession", None)
    if own is None:
        return
    # A client of Spark Connect may have no Py4J, which this module imports.
    from pyspark import java_gateway

    start: Callable[..., None] = java_gateway.ensure_callback_server_started  # PySpark has no types for it
    start(spark.sparkContext._gateway)
    function = _Function(lambda *arguments, **options: changes(spark, *arguments, **options))
    own.sessionState().tableFunctionRegistry().createOrReplaceTempFunction(NAME, function, "python_udtf")


def _value(expression: Any) -> Any:
    if not expression.foldable():
        raise ConfigError(f"{NAME} takes constants, not {expression.toString():.100}", hint=_HINT)
    kind, value = expression.dataType().simpleString(), expression.eval(None)
    if kind == _TEXT:
        return None if value is None else value.toString()
    if kind not in _PLAIN:
        raise ConfigError(f"{NAME} takes texts, integers and booleans, not {kind:.100}", hint=_HINT)
    return value
