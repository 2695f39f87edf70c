"""The page of S3: what it shows is what happens, against a server of S3's protocol."""

import os
from pathlib import Path

import boto3
import pytest

from tests.support.docs.pages import Tour
from tests.support.docs.played import S3
from tests.support.s3.server import KEY_ID, SECRET, Server

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture
def lake(moto_server: Server) -> None:
    """The bucket of the page. Buckets of other tests have longer names."""
    client = boto3.client(
        "s3",
        endpoint_url=moto_server.url,
        aws_access_key_id=KEY_ID,
        aws_secret_access_key=SECRET,
        region_name="us-east-1",
    )
    client.create_bucket(Bucket="lake")
    client.close()


@pytest.mark.parametrize("page", S3)
def test_the_page(page: str, lake: None, moto_server: Server, tmp_path: Path) -> None:
    variables = {name: value for name, value in moto_server.environment().items() if name.startswith("AWS_")}
    update = os.environ.get("CDFD_DOCS") == "update"
    with Tour(
        tmp_path / "tour", {"http://localhost:9000": moto_server.url}, update=update, variables=variables
    ) as tour:
        tour.play(DOCS / f"{page}.md")
