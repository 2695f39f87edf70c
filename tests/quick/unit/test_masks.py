"""Columns as they are published: by which names, and what their masks make of them."""

from typing import Any

import pytest

from cdfd.delta.types.schema import Primitive, StructField
from cdfd.errors import ConfigError
from cdfd.plan.shape.chosen import Chosen
from cdfd.plan.shape.masks import Mask, Method
from cdfd.plan.shape.parser import parse_filter
from cdfd.plan.shape.shape import AS_IT_IS, Shape

KEY = b"sixteen letters!"
LONG = StructField("a", Primitive("long"), nullable=False)


@pytest.mark.parametrize(
    ("method", "options", "kind", "nullable"),
    [
        ("nullify", {}, "long", True),
        ("constant", {"value": "7"}, "long", False),
        ("hmac_sha256", {"key": KEY}, "string", False),
    ],
)
def test_only_nulls_make_a_column_nullable_and_only_hashes_change_its_type(
    method: Method, options: dict[str, Any], kind: str, nullable: bool
) -> None:
    field = Mask(method, **options).field(LONG)
    assert (field.name, str(field.type), field.nullable) == ("a", kind, nullable)


@pytest.mark.parametrize(
    ("method", "options", "what"),
    [
        ("rot13", {}, "there is no mask 'rot13'"),
        ("constant", {}, "the mask constant needs a value"),
        ("truncate", {"length": 1, "key": KEY}, "the mask truncate takes no key"),
        ("truncate", {"length": -1}, "the length of a mask is negative"),
        ("truncate", {"length": 2**63}, "has more than 63 bits"),
        ("constant", {"value": "\udcff"}, "is not Unicode text"),
        ("hmac_sha256", {"key": KEY[1:]}, "the key of a mask has fewer than 16 bytes"),
    ],
)
def test_a_mask_that_cannot_be_is_refused(method: Any, options: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        Mask(method, **options)


@pytest.mark.parametrize(
    ("written", "chosen"),
    [
        ("a", Chosen("a")),
        ({"name": "a", "as": "b"}, Chosen("a", "b")),
        (Chosen("a", "b"), Chosen("a", "b")),
        ("", None),
        (7, None),
        ({"name": "a"}, None),
        ({"name": "a", "as": "b", "c": "d"}, None),
        ({"name": "", "as": "b"}, None),
        ({"name": "a", "as": ""}, None),
        ({"name": 7, "as": "b"}, None),
        ({"name": "a", "as": 7}, None),
    ],
)
def test_choice_of_a_column_is_a_name_or_a_name_and_an_alias(written: object, chosen: Chosen | None) -> None:
    assert Chosen.of(written) == chosen


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        (" amount ", Chosen("amount")),
        ("amount as value", Chosen("amount", "value")),
        ("a as b as c", Chosen("a as b", "c")),
        ("as b", Chosen("as b")),
        ("a as ", Chosen("a as")),
        ("a AS b", Chosen("a", "b")),
    ],
)
def test_choice_is_parsed_from_text(text: str, chosen: Chosen) -> None:
    actual = Chosen.parse(text)
    assert actual == chosen
    assert (actual.published, str(actual)) == (chosen.alias or chosen.name, text.strip().replace(" AS ", " as "))


def test_digest_of_a_shape_says_whether_rows_are_the_same() -> None:
    """Targets of other releases have these digests."""
    shapes = [
        AS_IT_IS,
        Shape(where=parse_filter("a > 1")),
        Shape(where=parse_filter("a > 2")),
        Shape((Chosen("a"), Chosen("b"))),
        Shape((Chosen("a"), Chosen("b", "c"))),
        *(Shape(masks=(("a", mask),)) for mask in (Mask("nullify"), Mask("constant", "x"), Mask("constant", "y"))),
        *(Shape(masks=(("a", Mask("truncate", length=length)),)) for length in (1, 2)),
        *(Shape(masks=(("a", Mask("hmac_sha256", key=key)),)) for key in (KEY, KEY[::-1])),
        Shape(masks=(("b", Mask("nullify")),)),
    ]
    assert len({shape.digest for shape in shapes}) == len(shapes)
    assert [shape.digest for shape in shapes[:2]] == [
        "3a905073f6e611c64da68328ffd53767",
        "f8198bec476acfd25d6fb28ae78a2ea6",
    ]
    assert Shape((Chosen("b"), Chosen("a"))).digest == shapes[3].digest
    nullified, hidden = (("a", Mask("nullify")), ("b", Mask("hmac_sha256", key=KEY)))
    assert Shape(masks=(nullified, hidden)).digest == Shape(masks=(hidden, nullified)).digest
