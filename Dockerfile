# ckpt without torch: docker build -t ckpt . && docker run --rm -v "$PWD:/data:ro" ckpt inspect model.pth
FROM python:3.13-slim AS build
COPY pyproject.toml README.md LICENSE /source/
COPY ckpt /source/ckpt
RUN pip install --no-cache-dir --prefix=/installed /source

FROM python:3.13-slim
COPY --from=build /installed /usr/local
USER 65534:65534
WORKDIR /data
ENTRYPOINT ["ckpt"]
CMD ["--help"]
