# TableTune's images, a target each:
#
#   operator   the operator, on a base without a shell
#   profiler   your vLLM with the command `tabletune`, for the profiling Job
#   plugin     copies the plugin into a volume of the serving pod; an init container
#
#   docker build --target operator --tag tabletune/operator:0.1.0 .
#   docker build --target profiler --tag tabletune/profiler:0.1.0 --build-arg VLLM_IMAGE=vllm/vllm-openai:v0.33.0 .
#
# Give VLLM_IMAGE the image that serves, by digest if you can: the profile is of that very engine. Each image holds
# its bill of materials in CycloneDX's format, /usr/share/sbom/*.cdx.json; base images carry their own packages' lists.

ARG PYTHON_IMAGE=docker.io/library/python:3.11-slim-bookworm
ARG RUNTIME_IMAGE=gcr.io/distroless/python3-debian12:nonroot
ARG BUSYBOX_IMAGE=docker.io/library/busybox:1.37.0-musl
ARG VLLM_IMAGE=docker.io/vllm/vllm-openai:v0.33.0


# The wheel, and the tools that make it.
FROM ${PYTHON_IMAGE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
COPY requirements/images.txt requirements/
RUN python3 -m venv /build \
 && /build/bin/pip install --quiet --require-hashes --only-binary=:all: -r requirements/images.txt
COPY pyproject.toml README.md LICENSE ./
COPY tabletune tabletune
COPY profiler profiler
COPY plugin plugin
COPY operator operator
RUN /build/bin/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir /wheels .


# The operator's packages, without what only their own tests and compilers read.
FROM build AS operator-files
COPY requirements/operator.txt requirements/
RUN /build/bin/pip install --quiet --require-hashes --only-binary=:all: --target /app -r requirements/operator.txt \
 && /build/bin/pip install --quiet --no-deps --no-index --target /app /wheels/*.whl \
 && rm -rf /app/tabletune_profiler /app/tabletune_plugin /app/bin \
 && find /app -type d \( -name tests -o -name test -o -name include \) -prune -exec rm -rf {} + \
 && find /app -type f \( -name '*.pyi' -o -name '*.pyx' -o -name '*.pxd' -o -name '*.c' -o -name '*.h' -o -name '*.a' \) -delete \
 && python3 -m venv --without-pip /empty \
 && mkdir -p /sbom /bin-files \
 && PYTHONPATH=/app /build/bin/cyclonedx-py environment --output-reproducible --output-file /sbom/operator.cdx.json \
      /empty/bin/python \
 && printf '#!/usr/bin/python3\nfrom tabletune_operator.main import run\n\nif __name__ == "__main__":\n    run()\n' > /bin-files/tabletune-operator \
 && chmod 755 /bin-files/tabletune-operator

FROM ${RUNTIME_IMAGE} AS operator
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="TableTune operator" \
      org.opencontainers.image.description="Measures vLLM's draft-length table for each DraftTable, and keeps it true" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=operator-files /app /app
COPY --from=operator-files /bin-files /usr/local/bin
COPY --from=operator-files /sbom /usr/share/sbom
ENV PYTHONPATH=/app PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
EXPOSE 8080
ENTRYPOINT ["tabletune-operator"]


# The plugin: pure Python, whose libraries vLLM has itself.
FROM build AS plugin-files
RUN /build/bin/pip install --quiet --no-deps --no-index --no-compile --target /plugin /wheels/*.whl \
 && rm -rf /plugin/tabletune_profiler /plugin/tabletune_operator /plugin/bin \
 && python3 -m venv --without-pip /empty \
 && mkdir -p /sbom /bin-files \
 && PYTHONPATH=/plugin /build/bin/cyclonedx-py environment --output-reproducible --output-file /sbom/plugin.cdx.json \
      /empty/bin/python \
 && printf '#!/bin/sh\nexec cp -R /usr/share/tabletune/plugin/. "${1:-/plugin}"\n' > /bin-files/tabletune-plugin \
 && chmod 755 /bin-files/tabletune-plugin

FROM ${BUSYBOX_IMAGE} AS plugin
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="TableTune plugin" \
      org.opencontainers.image.description="Copies TableTune's vLLM plugin into a volume of the serving pod" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=plugin-files /plugin /usr/share/tabletune/plugin
COPY --from=plugin-files /bin-files /usr/local/bin
COPY --from=plugin-files /sbom /usr/share/sbom
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/tabletune-plugin"]


# The profiler's bill of materials: what it adds to the serving image.
FROM build AS profiler-files
COPY requirements/profiler.txt requirements/
RUN mkdir /sbom \
 && /build/bin/cyclonedx-py requirements --output-reproducible --pyproject pyproject.toml \
      --output-file /sbom/profiler.cdx.json requirements/profiler.txt

# The profiler: the serving image, and the command beside it. Its packages come behind the image's own on Python's
# path, so that vLLM runs with the very libraries that it serves with.
FROM ${VLLM_IMAGE} AS profiler
USER 0
COPY requirements/profiler.txt /tmp/tabletune/
RUN python3 -m pip install --quiet --no-cache-dir --root-user-action=ignore --require-hashes --only-binary=:all: \
      --target /opt/tabletune -r /tmp/tabletune/profiler.txt \
 && rm -rf /opt/tabletune/bin
COPY --from=build /wheels /tmp/tabletune/wheels
RUN python3 -m pip install --quiet --no-cache-dir --root-user-action=ignore --no-deps --no-index \
      --target /opt/tabletune /tmp/tabletune/wheels/*.whl \
 && rm -rf /opt/tabletune/tabletune_operator /opt/tabletune/bin /tmp/tabletune \
 && python3 -c "import site; print('/opt/tabletune', file=open(site.getsitepackages()[0] + '/tabletune.pth', 'w'))" \
 && printf '#!/usr/bin/env python3\nfrom tabletune_profiler.main import run\n\nif __name__ == "__main__":\n    run()\n' > /usr/local/bin/tabletune \
 && chmod 755 /usr/local/bin/tabletune
COPY --from=profiler-files /sbom /usr/share/sbom
USER 1000:1000
# Last, so that another revision installs nothing anew.
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="TableTune profiler" \
      org.opencontainers.image.description="A vLLM image with the command that profiles it" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
ENTRYPOINT []
CMD ["tabletune", "--help"]
