"""Schemas of Protobuf, compiled, and messages of them."""

import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message
from grpc_tools import protoc


@lru_cache(100)
def compiled_files(text: str) -> descriptor_pb2.FileDescriptorSet:
    """A file, `record.proto`, and those that it imports. Fails where protoc refuses it."""
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
        return descriptor_pb2.FileDescriptorSet.FromString(compiled.read_bytes())


def described(text: str) -> descriptor_pb2.FileDescriptorProto:
    """The descriptor of a file."""
    return next(file for file in compiled_files(text).file if file.name == "record.proto")


@lru_cache(100)
def message_type(text: str) -> type[Message]:
    """The class of the first message in a file."""
    files, record = compiled_files(text), described(text)
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    name = ".".join(filter(None, (record.package, record.message_type[0].name)))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def parse(text: str, data: bytes) -> Any:
    """The message of a record. Fails where fields are left that the schema does not have."""
    message = message_type(text)()
    assert message.ParseFromString(data) == len(data)
    return message
