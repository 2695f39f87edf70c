"""An application that runs the scripts that it receives: `spark-submit driver.py PORT`.

Each is a JSON line with Python text, which runs among the names of those before it. The answer is a line with what it left in `answer`, or
its error. Nothing of the tests can be imported here.
"""

import json
import socket
import sys
import traceback

from pyspark.sql import SparkSession

import cdfd.spark

spark = SparkSession.builder.getOrCreate()
cdfd.spark.register(spark)
names = {"spark": spark}
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as connection, connection.makefile("rw") as lines:
    for line in lines:
        names["answer"] = None
        try:
            exec(compile(json.loads(line), "<script>", "exec"), names)
            answer = {"answer": names["answer"]}
        except Exception:  # noqa: BLE001 -- the test raises it
            answer = {"error": traceback.format_exc()}
        lines.write(json.dumps(answer, default=str) + "\n")
        lines.flush()
spark.stop()
