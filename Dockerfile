# The images of a cluster, one target each:
#
#     docker build --target operator    -t remotegpu-operator .       operator and webhook
#     docker build --target appliance   -t remotegpu-appliance .      gateway, worker, software GPU
#     docker build --target deviceplugin -t remotegpu-deviceplugin .  device plugin, with the client libraries inside
#
# It builds from a clean checkout. What exists already is given as a build context of the stage's name:
#
#     --build-context native=target/dist                              (the Rust parts: `make build`)
#     --build-context wheels=FOLDER --build-arg PIP_NO_INDEX=1        (the Python packages, hatchling included)
#
# The bases are pinned by digest. Newer ones, with their security fixes: `docker buildx imagetools inspect python:3.11-slim`
# shows the digest that the tag has now. No container registry is reached where this project is developed: both digests
# were read in public repositories (two each, with these tags), and no image was built on them there.
ARG BASE=python:3.11-slim@sha256:9c900dea9e8fb7e16277c179b555cc72d29a352dbc33cff48ad5a0412fd5bfc7
ARG RUST=rust:1-slim-bookworm@sha256:94e9efa4033213dbb70d4f665527e7ece3944ddb7ba1dd2e43f6fd6e2490af58

FROM ${RUST} AS build
WORKDIR /src
RUN apt-get update -qq && apt-get install -qq -y --no-install-recommends python3-venv >/dev/null
COPY pyproject.toml ./
# The versions of the project's extra `build`, and the packages that tools/python.sh copies.
RUN python3 -m venv .venv && .venv/bin/python -c "import tomllib; project = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
        print(*project['optional-dependencies']['build'], \
            *project['optional-dependencies']['offload'], sep='\n')" >build.txt \
    && .venv/bin/pip install -q -r build.txt
COPY Cargo.toml Cargo.lock ./
COPY remoting remoting
COPY tools/bench tools/bench
COPY tools/recorder tools/recorder
COPY offload/remotegpu_offload offload/remotegpu_offload
COPY operator/dashboard operator/dashboard
COPY tools/dashboard.sh tools/dist.sh tools/pod.sh tools/python.sh tools/
RUN tools/dist.sh

FROM scratch AS native
COPY --from=build /src/target/dist /

FROM scratch AS wheels
COPY pyproject.toml /

FROM ${BASE} AS dependencies
ARG PIP_NO_INDEX
ENV PIP_FIND_LINKS=/wheels PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_CACHE_DIR=1
WORKDIR /src
# pip stays here: what is copied into the images is a virtual environment without it.
RUN python3 -m venv /pip && python3 -m venv --without-pip /opt/remotegpu
COPY pyproject.toml ./
RUN --mount=type=bind,from=wheels,target=/wheels \
    python3 -c "import tomllib; project = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
        extras = project['optional-dependencies']; \
        print(*project['dependencies'], *extras['kubernetes'], *extras['offload'], sep='\n')" >requirements.txt \
    && /pip/bin/pip --python /opt/remotegpu/bin/python install -q -r requirements.txt

FROM dependencies AS package
COPY operator/remotegpu_operator operator/remotegpu_operator
COPY deviceplugin/remotegpu_deviceplugin deviceplugin/remotegpu_deviceplugin
COPY remoting/remotegpu remoting/remotegpu
COPY offload/remotegpu_offload offload/remotegpu_offload
# Below /package, so that it becomes a layer of its own and the large one of the dependencies stays as it is.
RUN --mount=type=bind,from=wheels,target=/wheels \
    /pip/bin/pip --python /opt/remotegpu/bin/python install -q --no-deps --root /package .

FROM ${BASE} AS runtime
RUN echo 'remotegpu:x:65532:65532::/:/usr/sbin/nologin' >>/etc/passwd && echo 'remotegpu:x:65532:' >>/etc/group
COPY --from=dependencies /opt/remotegpu /opt/remotegpu
COPY --from=package /package /
ENV PATH=/opt/remotegpu/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 REMOTEGPU_DIST=/opt/remotegpu/dist
WORKDIR /

FROM runtime AS operator
COPY --from=native /dashboard /opt/remotegpu/dist/dashboard
USER 65532:65532
ENTRYPOINT ["python", "-m", "remotegpu_operator"]

FROM runtime AS appliance
COPY --from=native /bin/remotegpu-gateway /bin/remotegpu-worker /opt/remotegpu/dist/bin/
COPY --from=native /native /opt/remotegpu/dist/native
# For offload's sessions for CUDA.
COPY --from=native /client /opt/remotegpu/dist/client
COPY --from=native /frameworks /opt/remotegpu/dist/frameworks
COPY --from=native /lib /opt/remotegpu/dist/lib
COPY --from=native /dashboard /opt/remotegpu/dist/dashboard
# The NVIDIA runtime adds the driver's compute and management libraries, and no others.
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 65532:65532
ENTRYPOINT ["remotegpu"]
CMD ["appliance"]

# Root, because kubelet's folder for plugins belongs to root; it needs no capability.
FROM runtime AS deviceplugin
COPY --from=native /pod /opt/remotegpu/dist/pod
ENTRYPOINT ["python", "-m", "remotegpu_deviceplugin"]
