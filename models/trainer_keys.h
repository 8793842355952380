// The fields of training programs' configurations: which are read, refused, or change no memory.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "models/file_keys.h"

namespace plimsoll::models {

// Words of a text, each a field's name.
std::vector<std::string_view> key_words(std::string_view text);

const KeyTable& axolotl_keys();  // Axolotl 0.19, utils/schemas and integrations/*/args.py
const KeyTable& llamafactory_keys();  // LLaMA-Factory 0.9.5, hparams, with TrainingArguments'
const KeyTable& swift_keys();  // ms-swift 4.6, arguments, with TrainingArguments'

// What Megatron-LM's arguments are called that no Trainer has.
std::span<const std::string_view> megatron_keys();

}  // namespace plimsoll::models
