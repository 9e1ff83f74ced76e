"""Faster forms of single operations of a transformer, each equal to a slow and obvious version that its test has.

attend_packed(decoder)      attention over a packed row, shared prefixes once (training)
attend_grouped(decoder)     attention of one new token over shared key-value heads (sampling)
tiled_logprobs(hidden, weight, targets, temperatures)     log-probs without a [positions, vocabulary] tensor
LoraLinear, fuse_norms      LoRA layers and RMS norms in fewer passes over memory
fuse_mlps                   gated MLPs that keep half of the wide activations for the backward pass
use_liger                   norms, RoPE and gated activations by Liger's Triton kernels, where a trial finds them equal
"""
