#!/usr/bin/env bash
# Fills .device-packages with what the tests on a GPU machine need and that machine lacks: it has Python 3.12,
# JAX, torch, CuPy and pytest, and reaches no package index.
# At most 64 MiB travel there: carry the archive, and unpack it with `tar xzf .device-packages.tar.gz`.
set -eu
cd "$(dirname "$0")/.."
target=.device-packages
rm -rf "$target"
fetch() {
    ${PYTHON:-python3.11} -m pip install --quiet --no-compile --target "$target" --python-version 3.12 --no-deps \
        --only-binary=:all: --ignore-requires-python --implementation cp --platform manylinux_2_28_x86_64 \
        --platform manylinux_2_27_x86_64 --platform manylinux2014_x86_64 --platform any "$@"
}
fetch pydantic pydantic-core annotated-types typing-inspection typing-extensions orjson httptools pybase64 lz4 zstandard \
    starlette uvicorn jiter jsonschema jsonschema-specifications referencing rpds-py pint flexcache flexparser platformdirs \
    xxhash hypothesis sortedcontainers anyio sniffio idna click h11 rich markdown-it-py mdurl pygments
# The peer, with what its client and server import.
fetch tesseract-core==1.15.0 tesseract-jax==0.5.1 requests certifi charset-normalizer urllib3 fastapi annotated-doc typer \
    shellingham pyyaml jinja2 markupsafe packaging fsspec "mlflow-skinny<3.17.1" opentelemetry-api opentelemetry-sdk \
    opentelemetry-semantic-conventions opentelemetry-proto protobuf importlib-metadata zipp cachetools gitpython gitdb \
    smmap databricks-sdk sqlparse python-dotenv cloudpickle
rm -f "$target"/zstandard/_cffi*
tar czf "$target.tar.gz" "$target"
du -sh "$target" "$target.tar.gz"
