// What the readers of trainers' own files share: those of TrainingArguments, and of programs around
// Trainer that hand it arguments under their own names (Axolotl, LLaMA-Factory, ms-swift).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/config_reader.h"
#include "models/file_keys.h"
#include "models/file_settings.h"
#include "models/fsdp_config_reader.h"
#include "models/trainers.h"

namespace plimsoll::models {

class TrainerFile {
 protected:
  // `trainer`: whose defaults (models/trainers.h) stand for what the file does not say; nullptr:
  // those that the calls name.
  TrainerFile(const Config& file, const Trainer* trainer) : file_(file), trainer_(trainer) {}

  // A default of Trainer where the file has no `key`.
  void say(const char* option, std::string value, const char* key) {
    out_.settings.push_back({option, std::move(value), key, !file_.has(key)});
  }
  // Of the file, or what follows from it.
  void state(const char* option, std::string value, const char* key) {
    out_.settings.push_back({option, std::move(value), key, false});
  }
  void note(const std::string& text) { out_.notes.push_back(file_.source() + ": " + text); }

  // Refuses slips in names that are read, and what is not modelled; notes what has no bearing on
  // memory, and what is not of `program`, whose fields these are.
  void sort_keys(const KeyTable& table, std::span<const std::string_view> also_known,
                 const std::string& program);

  // On a command line truth is a word, too (hf_argparser.py, string_to_bool).
  bool flag(const char* key, bool fallback) const;
  // An object, the same as text, or where `path` a file with it.
  std::optional<Config> section(const char* key, bool path) const;

  void sizes(const char* micro_batch, const char* accumulation);
  // Names of OptimizerNames (transformers 5.17, training_args.py); SGD's momentum in `arguments`.
  void optimizer(const char* key, const char* arguments);
  void projection(const std::string& name, const char* key, const std::string& arguments,
                  const char* arguments_key);
  void compile();
  // eager, sdpa, flash_attention_2 or _3, or one of the hub's kernels for these.
  void attention(const char* key, const std::string& name);
  // TrainingArguments' fsdp, fsdp_config and deepspeed. `version`: of FSDP where nothing is said.
  void sharding(int version);
  // gradient_checkpointing_kwargs: whether it says use_reentrant.
  bool reentrant();
  void ddp();
  void others();
  void low_rank(const char* rank, const char* alpha, const char* dropout);
  // Of a list, or of one name by itself, as a launch line has it.
  std::vector<std::string> names(const char* key) const;
  // "all-linear", or a list of names.
  std::string targets(const char* key) const;
  // The names of parameters that start with one of `key`'s, as patterns of `option`.
  void prefixes(const char* key, const char* option);
  // What PEFT's LoraConfig has beside matrices.
  void further(const char* modules_to_save, const char* use_dora);

  // The settings, and the trainer's defaults of options that none of them names.
  FileSettings finished();

  const Config& file_;
  const Trainer* trainer_;
  FileSettings out_;

 private:
  void fsdp(int version);
  FileSetting from_words(const std::string& words, FileSetting setting) const;
};

}  // namespace plimsoll::models
