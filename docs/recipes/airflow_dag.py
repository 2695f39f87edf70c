"""An Airflow DAG: deliver the changes of a table every ten minutes, and publish its live rows again once a week.

It needs `apache-airflow-providers-apache-spark`, and a connection `spark_default` with `"deploy-mode": "cluster"`. For the backfill, workers
of Airflow need `cdfd[spark]` and `/opt/cdfd/shop.yaml`.
"""

from datetime import UTC, datetime, timedelta

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

START = datetime(2026, 1, 1, tzinfo=UTC)

with DAG("cdfd_shop_orders", schedule=timedelta(minutes=10), start_date=START, catchup=False, max_active_runs=1):
    SparkSubmitOperator(
        task_id="deliver",
        application="s3a://lake/jobs/deliver.py",
        application_args=[
            "--uri=s3://lake/orders",
            "--pipeline=shop",
            "--checkpoint=s3a://lake/_checkpoints/shop/orders",
            "--source=startingVersion=earliest",
            "--sink=bootstrap_servers=kafka:9092",
            "--sink=topic=shop.orders",
            "--sink=key=order_id",
        ],
        archives="s3a://lake/jobs/environment.tar.gz#environment",
        conf={"spark.pyspark.python": "environment/bin/python"},
    )

with DAG("cdfd_shop_orders_again", schedule="@weekly", start_date=START, catchup=False, max_active_runs=1):
    # A retry resumes; a run that is cleared publishes nothing twice.
    BashOperator(
        task_id="backfill",
        bash_command="cdfd backfill -c /opt/cdfd/shop.yaml orders --snapshot --engine spark --id weekly-{{ ds }}",
        retries=3,
    )
