"""A tokenizer that is small enough to read: a word is a token, by its length."""


class Words:
    """What claims ask of a tokenizer."""

    eos_token_id, chat_template = 2, "a template"

    def __call__(self, text, add_special_tokens):
        assert not add_special_tokens
        return {"input_ids": [len(word) for word in text.split()]}

    def apply_chat_template(self, messages, add_generation_prompt, return_dict):
        assert add_generation_prompt
        assert return_dict
        return {"input_ids": [1, *(len(word) for word in messages[0]["content"].split()), 3]}

    def decode(self, tokens, skip_special_tokens=False):
        return " ".join(f"w{token}" for token in tokens if not (skip_special_tokens and token == self.eos_token_id))
