# pyright: basic, reportMissingImports=false, reportOptionalMemberAccess=false, reportArgumentType=false
"""NeMo Gym's genrm_compare: its resources server compares pairs; the transport to its reward model is ours."""

from functools import partial
from types import SimpleNamespace

import aiohttp
from driver import run
from nemo_gym.openai_utils import NeMoGymResponseCreateParamsNonStreaming
from resources_servers.genrm_compare.app import GenRMCompareConfig, GenRMCompareRequest, GenRMCompareResourcesServer


class Transport:
    """Posts to the reward model's server, as NeMo Gym's client does, without its registry of servers."""

    def __init__(self, url, model, session):
        self.url, self.model, self.session = url, model, session

    async def post(self, server_name, url_path, json):
        return await self.session.post(f"{self.url}/{self.model}{url_path}", json=json.model_dump(exclude_unset=True))


async def compare(url, model, task, attempts, strategy):
    config = GenRMCompareConfig.model_construct(
        **{name: field.get_default() for name, field in GenRMCompareConfig.model_fields.items()}
    )
    config.genrm_model_server = SimpleNamespace(name="genrm_model")
    config.genrm_responses_create_params = NeMoGymResponseCreateParamsNonStreaming(input=[])
    config.comparison_strategy = strategy
    answers = [
        {"output": [{"type": "message", "content": [{"type": "output_text", "text": attempt}]}]} for attempt in attempts
    ]
    asked = GenRMCompareRequest(conversation_history=[{"role": "user", "content": task}], response_objs=answers)
    async with aiohttp.ClientSession() as session:
        server = GenRMCompareResourcesServer.model_construct(
            config=config, server_client=Transport(url, model, session)
        )
        return (await server.compare(asked)).rewards


if __name__ == "__main__":
    run({"circular": partial(compare, strategy="circular"), "allpairs": partial(compare, strategy="all_pairs")})
