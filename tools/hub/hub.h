// Models of the Hugging Face hub: config.json and the headers of its weights, over the network. The
// weights themselves are never fetched, and nothing is written.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "models/safetensors_reader.h"

namespace plimsoll::tools {

// Where a hub is and as whom it is asked: variables of huggingface_hub 1.x (constants.py).
struct Hub {
  std::string endpoint;  // HF_ENDPOINT (https://huggingface.co), without "/" at its end
  std::string token;  // HF_TOKEN, or the file HF_TOKEN_PATH (HF_HOME/token) that `hf` writes
  bool offline = false;  // HF_HUB_OFFLINE, TRANSFORMERS_OFFLINE
  double timeout_seconds = 10;  // HF_HUB_DOWNLOAD_TIMEOUT
};
// Error{bad_input}: an endpoint that is no http or https address, a token with blanks or control
// characters, a timeout that is no positive number.
Hub hub_from_environment();

struct HubModel {
  std::string config;  // the text
  std::string source;  // its address, for messages
  std::optional<models::Checkpoint> checkpoint;  // of safetensors; of many files by name alone
};

// `id`: "org/name"; its revision main. Error{bad_input}: not there, not allowed (with what helps),
// or files that are none; Error{internal}: no answer, or the hub is busy beyond three attempts.
HubModel fetch_model(const Hub& hub, const std::string& id);

// HF_HOME, XDG_CACHE_HOME/huggingface, ~/.cache/huggingface.
std::filesystem::path hub_home();

}  // namespace plimsoll::tools
