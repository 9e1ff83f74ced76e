"""Samplers for rollouts: token ids in, token ids with log-probs out, with one live adapter.

    engine = TransformersEngine(base, slots=64)       or VllmEngine(url, ...)
    engine.publish(policy, version=3)
    request = SamplingRequest(prompt_ids, stop_ids, max_tokens=256, temperature=1.0, seed=0)
    engine.submit(request).result().token_ids

A request uses one adapter from its first token to its last, and its seed alone decides its random numbers.
"""
