"""Schemas of Protobuf, compiled, and messages of them."""

import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message
from grpc_tools import protoc


@lru_cache(100)
def message_type(text: str) -> type[Message]:
    """The class of the first message in a file. Fails where protoc refuses it."""
    with tempfile.TemporaryDirectory() as folder:
        source, compiled = Path(folder, "record.proto"), Path(folder, "record.bin")
        source.write_text(text)
        well_known = str(Path(protoc.__file__).parent / "_proto")
        arguments = [
            "protoc",
            f"-I{folder}",
            f"-I{well_known}",
            "--include_imports",
            f"--descriptor_set_out={compiled}",
        ]
        assert protoc.main([*arguments, str(source)]) == 0, text
        files = descriptor_pb2.FileDescriptorSet.FromString(compiled.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    record = next(file for file in files.file if file.name == "record.proto")
    name = ".".join(filter(None, (record.package, record.message_type[0].name)))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def parse(text: str, data: bytes) -> Any:
    """The message of a record. Fails where fields are left that the schema does not have."""
    message = message_type(text)()
    assert message.ParseFromString(data) == len(data)
    return message
