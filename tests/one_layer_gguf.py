"""A GGUF file that is small enough to be made by a test."""

import gguf
import numpy as np

CHARACTERS = [chr(code) for code in range(33, 127)]


def write_one_layer(path):
    """A one-layer llama in a GGUF file: float32 matrices, one of them quantized to Q4_1."""
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    tokens = ["<|endoftext|>", "<s>", "</s>", *CHARACTERS, "ab"]
    for add, value in (
        (writer.add_context_length, 64),
        (writer.add_embedding_length, 32),
        (writer.add_block_count, 1),
        (writer.add_feed_forward_length, 64),
        (writer.add_head_count, 4),
        (writer.add_head_count_kv, 2),
        (writer.add_layer_norm_rms_eps, 1e-5),
        (writer.add_rope_freq_base, 10_000.0),
        (writer.add_vocab_size, len(tokens)),
        (writer.add_tokenizer_model, "gpt2"),
        (writer.add_token_list, tokens),
        (writer.add_token_types, [1] * len(tokens)),
        (writer.add_token_merges, ["a b"]),
        (writer.add_bos_token_id, 1),
        (writer.add_eos_token_id, 2),
        (writer.add_unk_token_id, 0),
    ):
        add(value)
    shapes = {
        "token_embd.weight": (len(tokens), 32),
        "output_norm.weight": (32,),
        "blk.0.attn_norm.weight": (32,),
        "blk.0.ffn_norm.weight": (32,),
        "blk.0.attn_q.weight": (32, 32),
        "blk.0.attn_k.weight": (16, 32),
        "blk.0.attn_v.weight": (16, 32),
        "blk.0.attn_output.weight": (32, 32),
        "blk.0.ffn_gate.weight": (64, 32),
        "blk.0.ffn_up.weight": (64, 32),
        "blk.0.ffn_down.weight": (32, 64),
    }
    for name, shape in shapes.items():
        data = rng.normal(size=shape).astype(np.float32)
        if name.endswith("ffn_down.weight"):
            q4 = gguf.GGMLQuantizationType.Q4_1
            writer.add_tensor(name, gguf.quants.quantize(data, q4), raw_dtype=q4)
        else:
            writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
