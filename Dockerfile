# The daemon as an image. It needs no shell, no writable root and no certain user id: see docs/docker.md.
#
#   docker build -t cdfd .
#   docker build -t cdfd:spark --build-arg EXTRAS="spark librdkafka" .

# Python 3.13 on Debian 13, for amd64 and arm64. Both stages must have the same Python.
ARG PYTHON_IMAGE=python:3.13-slim@sha256:9d2e5553305c7c7b0097999bb17187c69b921ccd6bc9d40e4bb5ebe652c00285

# cdfd-native needs Rust 1.88 or newer, and Debian 13 has 1.85.
ARG RUST_IMAGE=rust:1.95.0-slim-bookworm@sha256:d7482085ff5b415f84dba5647ae71606650bdef00db7aeb69f4b3d170c3e4082

FROM ${RUST_IMAGE} AS rust

FROM ${PYTHON_IMAGE} AS build
# Names of files in docker/requirements, separated by spaces: azure-queue, fsspec, librdkafka, msk, otel, pubsub, spark.
ARG EXTRAS=""
WORKDIR /srv/build
# A C compiler, for zstd, and for Rust to link with. Debian removes superseded packages, so a pinned version would soon fail to build.
# hadolint ignore=DL3008
RUN set -eu; \
    if ! command -v gcc > /dev/null; then \
        apt-get update; \
        apt-get install -y --no-install-recommends gcc libc6-dev; \
        rm -rf /var/lib/apt/lists/*; \
    fi
COPY docker/requirements/ requirements/
# Every file is compared with the hashes of the lock, also the tools that build wheels. pip installs these tools itself otherwise, unchecked.
RUN set -eu; \
    python -m venv /srv/tools; \
    /srv/tools/bin/python -m pip install --require-hashes --only-binary=:all: -r requirements/build.txt; \
    for extra in base ${EXTRAS}; do \
        /srv/tools/bin/python -m pip wheel --require-hashes --no-build-isolation --wheel-dir wheels -r "requirements/${extra}.txt"; \
    done
# Before cdfd, so that a change of Python code compiles no crate again. Cargo.lock has the hashes of crates.
COPY --from=rust /usr/local/rustup/toolchains/ /usr/local/rustup/toolchains/
COPY .cargo/ .cargo/
COPY native/ native/
RUN set -eu; \
    PATH="$(echo /usr/local/rustup/toolchains/*/bin):/srv/tools/bin:${PATH}"; \
    /srv/tools/bin/python -m pip wheel --no-build-isolation --no-deps --wheel-dir wheels ./native
COPY pyproject.toml README.md LICENSE ./
COPY cdfd/ cdfd/
# Headers and tests of Arrow are 12 MB, and nothing loads them.
RUN set -eu; \
    /srv/tools/bin/python -m pip wheel --no-build-isolation --no-deps --wheel-dir wheels .; \
    python -m venv --without-pip /opt/cdfd; \
    /srv/tools/bin/python -m pip --python /opt/cdfd install --no-index --no-deps wheels/*.whl; \
    /srv/tools/bin/python -m pip --python /opt/cdfd check; \
    rm -rf /opt/cdfd/lib/python3*/site-packages/pyarrow/include /opt/cdfd/lib/python3*/site-packages/pyarrow/tests
COPY docker/healthcheck.py /opt/cdfd/healthcheck.py

FROM ${PYTHON_IMAGE}
ARG EXTRAS=""
# A JVM only where there is Spark. Debian removes superseded packages, so a pinned version would soon fail to build.
# hadolint ignore=DL3008
RUN set -eu; \
    case " ${EXTRAS} " in *" spark "*) \
        apt-get update; \
        apt-get install -y --no-install-recommends openjdk-21-jre-headless; \
        rm -rf /var/lib/apt/lists/*;; \
    esac; \
    echo "cdfd:x:65532:65532:cdfd:/var/lib/cdfd:/usr/sbin/nologin" >> /etc/passwd; \
    echo "cdfd:x:65532:" >> /etc/group; \
    install -d /etc/cdfd; \
    install -d -o 65532 -g 0 -m 0770 /var/lib/cdfd
COPY --from=build /opt/cdfd/ /opt/cdfd/
ENV PATH=/opt/cdfd/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/var/lib/cdfd \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
ARG VERSION=0.2.0
ARG REVISION=""
ARG CREATED=""
LABEL org.opencontainers.image.title="cdfd" \
      org.opencontainers.image.description="Publishes every row-level change of Delta Lake tables, in order and exactly once." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}"
# A number, so that Kubernetes can see that it is not root. Any other user id of group 0 can write to the volume, too.
USER 65532:65532
WORKDIR /var/lib/cdfd
VOLUME /var/lib/cdfd
EXPOSE 9464
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s --retries=3 CMD ["/opt/cdfd/bin/python", "-I", "/opt/cdfd/healthcheck.py"]
ENTRYPOINT ["/opt/cdfd/bin/cdfd"]
CMD ["run", "--config", "/etc/cdfd/cdfd.yaml"]
