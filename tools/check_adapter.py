"""Does an adapter that a run wrote mean the same in diffusers and in PEFT as it does here?

    cargo run --release --package policy-sd3 --example velocity -- MODEL ADAPTER target/velocity.safetensors
    python tools/check_adapter.py MODEL ADAPTER target/velocity.safetensors

Loads the adapter folder once through diffusers' `load_lora_weights` and once through PEFT, runs the transformer at the
stored inputs, and compares with the stored velocity. Fails when the largest difference exceeds 1e-4, or when the adapter
changes nothing.
"""
import sys

import torch
from diffusers import SD3Transformer2DModel, StableDiffusion3Pipeline
from peft import PeftModel
from safetensors.torch import load_file

TOLERANCE = 1e-4


def run(transformer, inputs):
    with torch.no_grad():
        return transformer(
            hidden_states=inputs["latents"],
            timestep=inputs["timesteps"],
            encoder_hidden_states=inputs["sequence"],
            pooled_projections=inputs["pooled"],
            return_dict=False,
        )[0]


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    model, adapter, stored = sys.argv[1:]
    inputs = load_file(stored)
    base = SD3Transformer2DModel.from_pretrained(model, subfolder="transformer", torch_dtype=torch.float32).eval()
    plain = run(base, inputs)
    change = (plain - inputs["velocity"]).abs().max().item()
    print(f"the adapter changes the velocity by up to {change:.4f}")

    pipe = StableDiffusion3Pipeline.from_pretrained(
        model, text_encoder_3=None, tokenizer_3=None, torch_dtype=torch.float32
    )
    pipe.load_lora_weights(adapter)
    through_diffusers = (run(pipe.transformer, inputs) - inputs["velocity"]).abs().max().item()
    print(f"diffusers load_lora_weights: largest difference {through_diffusers:.2e}")

    through_peft = (run(PeftModel.from_pretrained(base, adapter), inputs) - inputs["velocity"]).abs().max().item()
    print(f"PEFT from_pretrained:        largest difference {through_peft:.2e}")

    if max(through_diffusers, through_peft) > TOLERANCE:
        sys.exit(f"FAILED: a difference exceeds {TOLERANCE}")
    if change < 10 * TOLERANCE:
        sys.exit("FAILED: the adapter changes nothing, so the comparison says nothing; use a trained one")
    print("OK")


if __name__ == "__main__":
    main()
