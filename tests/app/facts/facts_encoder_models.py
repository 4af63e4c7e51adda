# SPDX-License-Identifier: Apache-2.0
"""Tiny encoders for the tests of facts, like facts_models.py: what a masked
token, a pair of sentences or a decoder after it sees.
"""

import copy

import torch
import transformers
from encoders_test import made_of, outputs_of, sizes_of
from facts_models import values_of

FAMILIES = {"megatron-bert": "MegatronBertForPreTraining",
            "t5": "T5ForConditionalGeneration",
            "mt5": "MT5ForConditionalGeneration"}
UNSAID = {}
# Other valid values. T5's class makes two of them of the third.
OWN = {
    "feed_forward_proj": ["relu", "gated-silu", "gated-relu", "silu"],
    "dense_act_fn": ["relu", "gelu", "silu"], "is_gated_act": [],
    "hidden_act": ["relu", "gelu_new", "silu"],
    "scale_decoder_outputs": [True], "type_vocab_size": [3, 4],
    "is_decoder": [True], "tie_word_embeddings": [True, False],
}
GENERAL = set(transformers.PretrainedConfig().to_dict())


def config_of(name, **changes):
    kind = getattr(transformers, FAMILIES[name])
    return kind.config_class(**{**sizes_of(FAMILIES[name]), **changes})


def fields_of(name):
    return sorted({*(k for k in config_of(name).to_dict()
                     if k not in GENERAL and not k.endswith("_token_id")),
                   "tie_word_embeddings", "is_decoder"})


def values_for(config, field):
    if field in OWN:
        now = getattr(config, field, None)
        return [v for v in copy.deepcopy(OWN[field]) if v != now]
    return values_of(config, field)


def model_of(config):
    return made_of(getattr(transformers, FAMILIES[config.model_type]), config)


def logits_of(model):
    return torch.cat([one.flatten() for one in outputs_of(model.eval())])


def logits_at(path):
    kind = transformers.AutoConfig.from_pretrained(path).architectures[0]
    return logits_of(getattr(transformers, kind).from_pretrained(
        path, dtype=torch.float32))
