"""Records with keys go where a Java producer puts them."""

import random
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest

from cdfd.sinks.kafka.records.murmur2 import partitions
from tests.support.kafka.installation import installed

SOURCE = """
import java.io.*;
import java.util.*;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;

public class Partitions {
    public static void main(String[] arguments) throws IOException {
        int count = Integer.parseInt(arguments[0]);
        for (String line : new BufferedReader(new InputStreamReader(System.in)).lines().toList())
            System.out.println(BuiltInPartitioner.partitionForKey(HexFormat.of().parseHex(line), count));
    }
}
"""


@pytest.mark.usefixtures("needs_broker")
@pytest.mark.parametrize("count", [1, 4, 12, 1000])
def test_equal_to_javas(tmp_path: Path, count: int) -> None:
    source = tmp_path / "Partitions.java"
    source.write_text(SOURCE)
    numbers = random.Random(count)
    keys = [numbers.randbytes(numbers.randrange(60)) for _ in range(2000)] + [
        b"",
        b"{}",
        b'{"id":1}',
        "\u00e9".encode(),
    ]
    answer = subprocess.run(
        ["java", "-cp", str(installed().folder / "jars" / "*"), str(source), str(count)],
        input="\n".join(key.hex() for key in keys),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert answer.returncode == 0, answer.stderr
    expected = [int(line) for line in answer.stdout.split()]
    assert partitions(pa.array(keys, pa.large_binary()), count).tolist() == expected
