# A machine with a GPU that trains. From the repository's root:
#   docker build --file deploy/trainer.Dockerfile --tag gavel-trainer .
#   docker run --gpus all --volume runs:/srv/gavel/runs --volume models:/srv/gavel/.cache --env OPENAI_API_KEY gavel-trainer \
#     train returns_desk --model Qwen/Qwen3-4B --judge openai/gpt-5-mini --max-cost 5
#   docker run --gpus all --publish 127.0.0.1:8090:8090 --volume runs:/srv/gavel/runs --env GAVEL_BACKEND_KEY gavel-trainer \
#     backend --host 0.0.0.0
# PyTorch brings CUDA's libraries; the host needs the driver and the NVIDIA container toolkit.
FROM python:3.12-slim AS build
WORKDIR /build
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
COPY gavel ./gavel
RUN python -m venv /opt/gavel && /opt/gavel/bin/pip install --no-cache-dir '.[train,service]' bitsandbytes==0.50.2

FROM python:3.12-slim
RUN useradd --system --uid 10001 --home-dir /srv/gavel --create-home gavel \
    && install --directory --owner gavel /srv/gavel/runs /srv/gavel/.cache
COPY --from=build /opt/gavel /opt/gavel
ENV PATH=/opt/gavel/bin:$PATH PYTHONUNBUFFERED=1 HF_HOME=/srv/gavel/.cache/huggingface
WORKDIR /srv/gavel
VOLUME ["/srv/gavel/runs", "/srv/gavel/.cache"]
USER 10001
EXPOSE 8090
ENTRYPOINT ["gavel"]
CMD ["doctor"]
