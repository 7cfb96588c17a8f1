"""Models: loading them, making GPT-2 right for left-padded batches, decoding."""
