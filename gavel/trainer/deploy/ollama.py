"""Ollama: the adapter merged into its base, as a model of an Ollama server, which converts and quantizes it itself.

    gavel deploy desk/clerk@12 ollama                              OLLAMA_HOST, else http://127.0.0.1:11434
    gavel deploy desk/clerk@12 ollama:http://10.0.0.3:11434 --set quantize=q4_K_M

The merged model is written to a scratch directory, its files are sent by hash, and what the server has is not sent
again. Its converter knows some architectures; for another one the commands of llama.cpp are told.
"""

import asyncio
import json
import os
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from gavel.base.files import file_sha256
from gavel.base.network import is_on_this_machine
from gavel.trainer.backends.run_export import export_run
from gavel.trainer.deploy.host import Deployment, Report, ask, make_once, place_of_server, remove, sdk, unless_gone
from gavel.trainer.deploy.record import AdapterFacts, DeployError, DeploymentRecord

if TYPE_CHECKING:
    from ollama import AsyncClient

_CONVERTED = ("Llama", "Mistral", "Mixtral", "Gemma", "Phi3", "Qwen2", "Qwen3", "Cohere")
"""Architectures whose safetensors an Ollama server converts, by the beginning of transformers' name."""
_IN_A_STREAM = -1
"""The package's status of an error that comes after the answer has begun."""
_QUANTIZATIONS = ("", "q8_0", "q4_K_M", "q4_K_S")


class OllamaHost:
    """A running Ollama server."""

    name = "ollama"
    remedies: Mapping[int, str] = {
        0: "Start it (ollama serve), or name another: ollama:http://HOST:11434.",
        _IN_A_STREAM: "What it says must be put right on that server.",
    }

    def __init__(self, place: str, *, quantize: str = "") -> None:
        """`place`: the server's address. `quantize`: q8_0, q4_K_M or q4_K_S; by default the weights stay so."""
        if quantize not in _QUANTIZATIONS:
            known = ", ".join(_QUANTIZATIONS[1:])
            raise DeployError(f"Ollama has no quantization {quantize!r}", f"There are: {known}.")
        url = place or os.environ.get("OLLAMA_HOST") or "http://127.0.0.1:11434"
        sdk("ollama")
        self.place = self._url = place_of_server(url if "://" in url else f"http://{url}", "ollama:http://HOST:11434")
        self._quantize = quantize

    def check(self, adapter: AdapterFacts) -> list[str]:
        return []  # merged, an adapter is of any rank and kind; the architecture is known when it is merged

    async def deploy(self, adapter: AdapterFacts, record: DeploymentRecord, report: Report) -> Deployment:
        server, name = self._client(), self._model(record)

        async def make() -> str:
            merged = await self._merge(adapter, record, report)
            await self._create(server, name, merged, report)
            return name

        await make_once(record, f"{self._url} makes no model", partial(unless_gone, partial(server.show, name)), make)
        shutil.rmtree(_scratch(record), ignore_errors=True)
        return Deployment(self, record, f"{self._url}/v1", name, None)

    async def status(self, record: DeploymentRecord) -> str:
        server, name = self._client(), self._model(record)
        what = f"{self._url} does not answer as Ollama does"
        return "there" if await ask(what, partial(unless_gone, partial(server.show, name))) is not None else "gone"

    async def undeploy(self, record: DeploymentRecord, report: Report) -> None:
        server, name = self._client(), self._model(record)
        await remove(f"{name} of {self._url}", lambda: server.delete(name), report)
        shutil.rmtree(_scratch(record), ignore_errors=True)

    def costs(self, record: DeploymentRecord) -> str:
        return (
            f"Ollama at {self._url}: the disk of that machine, and its memory while the model is used; "
            f"to remove it: gavel undeploy {record.id}"
        )

    def _model(self, record: DeploymentRecord) -> str:
        return f"{record.remote_name}:{self._quantize}" if self._quantize else record.remote_name

    def _client(self) -> "AsyncClient":
        return sdk("ollama").AsyncClient(host=self._url, trust_env=not is_on_this_machine(self._url))

    async def _merge(self, adapter: AdapterFacts, record: DeploymentRecord, report: Report) -> Path:
        """The merged model's directory. Raises `DeployError` for an architecture that the server does not convert."""
        out = _scratch(record)
        report(f"merging step {adapter.step} into its base")
        run = record.path.parent.parent
        await asyncio.to_thread(export_run, run, "merged", step=adapter.step, out=out)
        (kind,) = json.loads((out / "config.json").read_text())["architectures"]
        if not kind.startswith(_CONVERTED):
            raise DeployError(
                f"Ollama does not convert {kind}",
                "With llama.cpp (github.com/ggml-org/llama.cpp), which converts more:\n"
                f"  python convert_hf_to_gguf.py {out} --outfile model.gguf\n"
                f"  printf 'FROM ./model.gguf' > Modelfile && ollama create {self._model(record)} -f Modelfile",
            )
        return out

    async def _create(self, server: "AsyncClient", name: str, merged: Path, report: Report) -> None:
        files: dict[str, str] = {}
        for file in _model_files(merged):
            files[file.name] = await self._send(server, file, report)
        report(f"{self._url} converts it")
        async for progress in await server.create(name, self._quantize or None, files=files, stream=True):
            if progress.status == "success":
                return
        raise ConnectionError(f"{self._url} went away before it had made the model")

    async def _send(self, server: "AsyncClient", file: Path, report: Report) -> str:
        known = f"sha256:{await asyncio.to_thread(file_sha256, file)}"

        async def send() -> str:
            async with httpx.AsyncClient(timeout=60.0, trust_env=not is_on_this_machine(self._url)) as client:
                if (await client.head(f"{self._url}/api/blobs/{known}")).is_success:
                    return known
            report(f"sending {file.name}")
            return await server.create_blob(file)

        return await ask(f"{file.name} cannot be sent to {self._url}", send)


open_host = OllamaHost


def _model_files(merged: Path) -> list[Path]:
    """The files that the converter reads."""
    kinds = (".safetensors", ".json")
    return [file for file in sorted(merged.iterdir()) if file.suffix in kinds or file.name == "tokenizer.model"]


def _scratch(record: DeploymentRecord) -> Path:
    """The directory of the merged model until the server has it."""
    return record.path.with_suffix(".merged")
