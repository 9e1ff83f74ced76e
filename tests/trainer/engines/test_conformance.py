"""What every engine keeps to, run on the embedded one and on a real vLLM server (`make test-vllm`)."""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import GenerationConfig

from gavel.trainer.config import LoraSettings, VllmSettings
from gavel.trainer.engines.protocol import AdapterGone, ContextOverflow, Engine, EngineError, Sampled
from gavel.trainer.engines.transformers import TransformersEngine
from gavel.trainer.engines.vllm import VllmEngine
from gavel.trainer.engines.vllm_launch import Served, open_vllm_engine
from gavel.trainer.policy.policy import Policy, load_base
from tests.limits import HANG_SECONDS
from tests.trainer.conftest import ask, full_logprobs, request_for, some_ids, stirred, tiny_model
from tests.trainer.conftest import assert_sampled_by as assert_sampled_within

VOCABULARY = 832
MAX_CONTEXT = 8192
SLOTS = 2
VERSIONS = 2
TOLERANCE = 1e-3
prompt = partial(some_ids, vocabulary=VOCABULARY)
assert_sampled_by = partial(assert_sampled_within, within=TOLERANCE)
LORA = LoraSettings(rank=4)


@dataclass
class Leg:
    """One kind of engine, over the base model of these tests."""

    start: Callable[[], Engine]
    kill: Callable[[Engine], None]
    """Ends what serves it, without telling it."""


@pytest.fixture(scope="module")
def base_directory(tmp_path_factory, policy) -> Path:
    """A random base model with heads that vLLM's CPU attention knows, and habits that would bend every sample."""
    directory = tmp_path_factory.mktemp("base")
    model = tiny_model(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=MAX_CONTEXT,
        initializer_range=0.2,
    )
    model.generation_config = GenerationConfig(
        do_sample=True, temperature=0.3, top_k=3, top_p=0.5, repetition_penalty=1.8, eos_token_id=list(range(400))
    )
    model.save_pretrained(directory)
    policy.tokenizer.save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def base(base_directory) -> torch.nn.Module:
    return load_base(str(base_directory), torch.float32, "cpu")


def adapted(base_directory: Path, seed: int) -> Policy:
    return stirred(Policy(str(base_directory), LORA), 0.2, seed)


@pytest.fixture(scope="module")
def one(base_directory) -> Policy:
    return adapted(base_directory, 1)


@pytest.fixture(scope="module")
def other(base_directory) -> Policy:
    return adapted(base_directory, 2)


@pytest.fixture(scope="module")
def leg(request, base_directory, tmp_path_factory) -> Iterator[Leg]:
    if request.param == "transformers":

        def start() -> Engine:
            model = load_base(str(base_directory), torch.float32, "cpu")
            return TransformersEngine(model, slots=SLOTS, max_context=MAX_CONTEXT, versions=VERSIONS)

        def kill(engine: Engine) -> None:
            engine._passes = None  # the next pass fails, as one without memory would

        yield Leg(start, kill)
        return
    directory, at = tmp_path_factory.mktemp("vllm"), str(base_directory)
    served = Served(at, torch.float32, "cpu", rank=4, slots=SLOTS, max_context=MAX_CONTEXT, versions=VERSIONS)
    first = open_vllm_engine(VllmSettings(python=os.environ["GAVEL_TEST_VLLM_PYTHON"]), served, directory)

    def another() -> Engine:
        others = directory / "others"
        return VllmEngine(first._url, str(base_directory), others, max_context=MAX_CONTEXT, versions=VERSIONS)

    def kill_server(engine: Engine) -> None:
        first._process.close()

    yield Leg(another, kill_server)
    first.close()


@pytest.fixture(scope="module")
def unadapted(base_directory) -> Policy:
    """A new adapter, which changes nothing."""
    return Policy(str(base_directory), LORA)


@pytest.fixture
def engine(leg, unadapted) -> Iterator[Engine]:
    running = leg.start()
    running.publish(unadapted, 0)
    yield running
    running.close()


both = pytest.mark.parametrize(
    "leg", ["transformers", pytest.param("vllm", marks=pytest.mark.vllm)], indirect=True, scope="module"
)
pytestmark = [pytest.mark.slow, both]


def test_greedy_tokens_are_those_of_plain_forward_passes(engine, base):
    for seed, length in enumerate([1, 40]):
        ids = prompt(seed, length)
        found = ask(engine, ids, temperature=0.0, max_tokens=16)
        with torch.no_grad():
            likeliest = base(input_ids=torch.tensor([ids + found.token_ids])).logits[0, length - 1 : -1].argmax(-1)
        assert found.token_ids == likeliest.tolist()
        assert_sampled_by(base, ids, found)


def test_tokens_are_drawn_from_the_whole_distribution(engine, base):
    ids = prompt(0, 5)
    futures = [engine.submit(request_for(ids, max_tokens=1, temperature=1.5, seed=n)) for n in range(300)]
    drawn = [future.result(timeout=HANG_SECONDS).token_ids[0] for future in futures]
    with torch.no_grad():
        expected = torch.softmax(base(input_ids=torch.tensor([ids])).logits[0, -1] / 1.5, -1).numpy()
    likely = np.argsort(expected)[::-1]
    for share in (0.5, 0.9):  # cut the distribution there: as many draws as expected on either side
        head = likely[: int((expected[likely].cumsum() < share).sum()) + 1]
        deviation = 5 * np.sqrt(0.25 / len(drawn))
        assert np.isin(drawn, head).mean() == pytest.approx(expected[head].sum(), abs=deviation)


@pytest.mark.parametrize("seed", [5, -1, 2**63 + 7])
def test_the_same_seed_gives_the_same_tokens_alone_and_in_a_crowd(engine, seed):
    wanted = request_for(prompt(0, 20), seed=seed, max_tokens=20)
    alone = engine.submit(wanted).result(timeout=HANG_SECONDS)
    crowd = [engine.submit(request_for(prompt(n, n), seed=n, max_tokens=2 * n)) for n in range(1, 8)]
    within = engine.submit(wanted).result(timeout=HANG_SECONDS)
    assert within.token_ids == alone.token_ids
    assert within.logprobs == pytest.approx(alone.logprobs, abs=TOLERANCE)
    assert [len(future.result(timeout=HANG_SECONDS).token_ids) for future in crowd] == [2 * n for n in range(1, 8)]
    assert ask(engine, prompt(0, 20), seed=seed + 1, max_tokens=20).token_ids != alone.token_ids


def test_sampling_ends_at_a_stop_token_of_the_request_which_is_kept_and_at_no_other(engine, base):
    found = ask(engine, prompt(0, 4), max_tokens=40)
    assert len(found.token_ids) == 40
    assert set(base.generation_config.eos_token_id) & set(found.token_ids[:-1])
    ids = prompt(0, 8)
    whole = ask(engine, ids, max_tokens=10)
    assert (len(whole.token_ids), whole.finish_reason) == (10, "length")
    stop = whole.token_ids[4]
    until = whole.token_ids[: whole.token_ids.index(stop) + 1]
    stopped = ask(engine, ids, max_tokens=10, stop_ids=frozenset([stop, VOCABULARY - 1]))
    assert (stopped.token_ids, stopped.finish_reason) == (until, "stop")
    assert len(stopped.logprobs) == len(until)


def test_tokens_are_heard_in_order_before_the_reply_is_done(engine):
    heard: list[tuple[int, float, int]] = []

    def on_tokens(piece):
        pairs = zip(piece.token_ids, piece.logprobs, strict=True)
        heard.extend((token, logprob, piece.adapter_version) for token, logprob in pairs)

    plain = engine.submit(request_for(prompt(3, 20), seed=4)).result(timeout=HANG_SECONDS)
    future = engine.submit(request_for(prompt(3, 20), seed=4, on_tokens=on_tokens))
    done: list[int] = []
    future.add_done_callback(lambda _: done.append(len(heard)))
    found = future.result(timeout=HANG_SECONDS)
    assert found.token_ids == plain.token_ids
    assert heard == [(token, value, 0) for token, value in zip(found.token_ids, found.logprobs, strict=True)]
    assert done == [len(found.token_ids)]


def test_a_prompt_as_long_as_the_context_is_refused_and_one_shorter_is_not(engine):
    assert engine.max_context == MAX_CONTEXT
    for length in (MAX_CONTEXT, MAX_CONTEXT + 1):
        with pytest.raises(ContextOverflow, match=f"{length} tokens; the maximum context length is {MAX_CONTEXT}"):
            ask(engine, prompt(0, length))
    last = ask(engine, prompt(0, MAX_CONTEXT - 1), max_tokens=9)
    assert (len(last.token_ids), last.finish_reason) == (1, "length")


def test_a_publication_changes_version_tokens_and_logprobs(engine, base, base_directory, one, other):
    ids = prompt(0, 40)
    before = ask(engine, ids)
    assert (before.adapter_version, engine.adapter_version) == (0, 0)
    assert_sampled_by(base, ids, before)
    for version, policy in ((3, one), (7, other), (8, one)):
        with engine.release_memory():
            pass
        engine.publish(policy, version)
        assert engine.adapter_version == version
        assert engine.score(ids) == pytest.approx(full_logprobs(policy.model, ids).tolist(), abs=TOLERANCE)
        after = ask(engine, [*ids, *before.token_ids], temperature=0.7)
        assert after.adapter_version == version
        assert_sampled_by(policy.model, [*ids, *before.token_ids], after, 0.7)
    again = adapted(base_directory, 3)
    engine.publish(again, 8)
    assert engine.score(ids) == pytest.approx(full_logprobs(again.model, ids).tolist(), abs=TOLERANCE)


@pytest.mark.parametrize("temperature", [0.6, 1.5])
def test_a_request_keeps_its_adapter_and_its_temperature_to_its_last_token(engine, base, one, other, temperature):
    models, asked = {0: base, 1: one.model, 2: other.model}, {"max_tokens": 60, "temperature": temperature}
    prompts = [prompt(n, 3 + 5 * n) for n in range(3 * SLOTS)]
    futures = [engine.submit(request_for(ids, seed=n, **asked)) for n, ids in enumerate(prompts)]
    for version, policy in ((1, one), (2, other)):
        engine.publish(policy, version)
        late = engine.submit(request_for(prompts[0], **asked))
        prompts, futures = [*prompts, prompts[0]], [*futures, late]
    found = [future.result(timeout=HANG_SECONDS) for future in futures]
    for ids, sampled in zip(prompts, found, strict=True):
        assert len(sampled.token_ids) == 60
        assert_sampled_by(models[sampled.adapter_version], ids, sampled, temperature)
    assert found[-2].adapter_version >= 1
    assert found[-1].adapter_version == 2


def test_conversations_go_on_with_the_adapter_that_they_began_with_beside_those_of_the_live_one(engine, base, one):
    began = {0: base, 1: one.model}
    conversations = {(version, n): prompt(n, 10 + 7 * n) for n in range(4) for version in began}
    for turn in range(3):
        if turn == 1:
            engine.publish(one, 1)
        futures = {
            (version, n): engine.submit(request_for(ids, seed=turn, max_tokens=8, adapter_version=version))
            for (version, n), ids in conversations.items()
            if version == 0 or turn
        }
        for (version, n), future in futures.items():
            found, ids = future.result(timeout=HANG_SECONDS), conversations[version, n]
            assert found.adapter_version == version
            assert_sampled_by(began[version], ids, found)
            ids += [*found.token_ids, turn]
    assert (engine.adapter_version, engine.adapter_versions) == (1, [0, 1])
    assert engine.score(prompt(4, 9)) == pytest.approx(full_logprobs(one.model, prompt(4, 9)).tolist(), abs=TOLERANCE)


def test_an_adapter_that_is_no_longer_held_is_told_apart_from_other_errors(engine, one, other):
    early = engine.submit(request_for(prompt(0, 5), max_tokens=60, adapter_version=0))
    engine.publish(one, 1)
    engine.publish(other, 2)
    assert early.result(timeout=HANG_SECONDS).adapter_version == 0, "what is in flight is not broken off"
    assert engine.adapter_versions == [1, 2]
    for version in (0, 3):
        with pytest.raises(AdapterGone, match=f"the adapter of step {version} is not held; there are: 1, 2"):
            ask(engine, prompt(0, 5), adapter_version=version)
    assert ask(engine, prompt(0, 5), adapter_version=1).adapter_version == 1


def test_cancelled_requests_give_their_places_back(engine):
    endless = [engine.submit(request_for(prompt(n, 5), max_tokens=MAX_CONTEXT)) for n in range(3 * SLOTS)]
    cancelling = threading.Thread(target=lambda: [future.cancel() for future in endless])
    cancelling.start()
    short = [engine.submit(request_for(prompt(n, 7), max_tokens=3)) for n in range(2 * SLOTS)]
    assert [len(future.result(timeout=HANG_SECONDS).token_ids) for future in short] == [3] * (2 * SLOTS)
    cancelling.join()
    assert all(future.cancelled() for future in endless)


def assert_failed(futures: "list[Future[Sampled]]", match: str) -> None:
    for future in futures:
        with pytest.raises(EngineError, match=match):
            future.result(timeout=HANG_SECONDS)


def test_closing_fails_what_is_in_flight_and_what_comes_after_and_closing_again_does_nothing(engine):
    assert not engine.closed
    futures = [engine.submit(request_for(prompt(n, 5), max_tokens=MAX_CONTEXT)) for n in range(3 * SLOTS)]
    engine.close()
    engine.close()
    assert engine.closed
    assert_failed(futures, "closed with requests in flight")
    assert_failed([engine.submit(request_for([1, 2]))], "has been closed")
    with pytest.raises(EngineError, match="has been closed"):
        engine.score([1, 2])


def test_a_dead_engine_fails_all_that_it_is_asked_and_hangs_nobody(leg, engine, one):
    futures = [engine.submit(request_for(prompt(n, 5), max_tokens=MAX_CONTEXT)) for n in range(3 * SLOTS)]
    leg.kill(engine)
    futures += [engine.submit(request_for([1, 2]))]
    assert_failed(futures, "stopped|is gone|has been closed")
    for call in (lambda: engine.score([1, 2]), lambda: engine.publish(one, 1)):
        with pytest.raises(EngineError) as error:
            call()
        assert error.value.remedy
    assert engine.closed
    engine.close()
