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
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from gavel.base.files import file_sha256
from gavel.base.network import is_on_this_machine
from gavel.trainer.backends.run_export import export_run
from gavel.trainer.deploy.host import Plan, Report, Resource, place_of_server, sdk, unless_gone
from gavel.trainer.deploy.record import AdapterFacts, DeployError, DeploymentRecord

_CONVERTED = ("Llama", "Mistral", "Mixtral", "Gemma", "Phi3", "Qwen2", "Qwen3", "Cohere")
"""Architectures whose safetensors an Ollama server converts, by the beginning of transformers' name."""
_IN_A_STREAM = -1
"""The package's status of an error that comes after the answer has begun."""
_QUANTIZATIONS = ("", "q8_0", "q4_K_M", "q4_K_S")


class OllamaHost:
    """A running Ollama server."""

    name, key_variable = "ollama", None
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

    @asynccontextmanager
    async def plan(self, record: DeploymentRecord, report: Report) -> AsyncGenerator[Plan]:
        name = f"{record.remote_name}:{self._quantize}" if self._quantize else record.remote_name
        trust_env = not is_on_this_machine(self._url)
        server = sdk("ollama").AsyncClient(host=self._url, trust_env=trust_env)

        async def send(file: Path) -> str:
            known = f"sha256:{await asyncio.to_thread(file_sha256, file)}"
            async with httpx.AsyncClient(timeout=60.0, trust_env=trust_env) as client:
                if (await client.head(f"{self._url}/api/blobs/{known}")).is_success:
                    return known
            report(f"sending {file.name}")
            return await server.create_blob(file)

        async def make() -> None:
            run, step = record.path.parents[1], record.adapter.step
            report(f"merging step {step} into its base")
            await asyncio.to_thread(export_run, run, "merged", step=step, out=record.directory)
            _check_architecture(record.directory, name)
            kinds = (".safetensors", ".json", ".model")
            read = [file for file in sorted(record.directory.iterdir()) if file.suffix in kinds]
            files = {file.name: await send(file) for file in read}
            report(f"{self._url} converts it")
            async for progress in await server.create(name, self._quantize or None, files=files, stream=True):
                if progress.status == "success":
                    return shutil.rmtree(record.directory)
            raise ConnectionError(f"{self._url} went away before it had made the model")

        find = partial(unless_gone, partial(server.show, name))
        model = Resource(f"{name} at {self._url}", find, make, remove=lambda: server.delete(name))
        yield Plan([model], lambda: (f"{self._url}/v1", name))

    def costs(self, record: DeploymentRecord) -> str:
        return f"Ollama at {self._url}: the disk of that machine, and its memory while the model is used"


open_host = OllamaHost


def _check_architecture(merged: Path, name: str) -> None:
    """Raises `DeployError` for an architecture that the server does not convert."""
    config: dict[str, Any] = json.loads((merged / "config.json").read_text())
    (kind,) = config["architectures"]
    if not kind.startswith(_CONVERTED):
        raise DeployError(
            f"Ollama does not convert {kind}",
            "With llama.cpp (github.com/ggml-org/llama.cpp), which converts more:\n"
            f"  python convert_hf_to_gguf.py {merged} --outfile model.gguf\n"
            f"  printf 'FROM ./model.gguf' > Modelfile && ollama create {name} -f Modelfile",
        )
