// The options of what starts a training run.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace plimsoll::tools::launchers {

using Names = std::span<const std::string_view>;

// What a launcher takes: names without dashes, "_" inside.
struct Launcher {
  std::string_view name;
  Names flags;  // take no value
  Names values;
};

// accelerate launch 1.15, torchrun, deepspeed 0.19.8, python; a training program's own command
// (axolotl train, llamafactory-cli train, swift sft), which has no name.
extern const Launcher kAccelerate, kTorchrun, kDeepSpeed, kPython, kOwnCommand;

bool is_in(Names names, std::string_view name);

// Of python -m; nullptr: another module.
const Launcher* launcher_of_module(std::string_view module);

// Error{bad_input}: nothing that is known starts a training by this name.
[[noreturn]] void refuse_launcher(const std::string& program);

// Error{bad_input}: `launcher` has no option `word`, and its nearest one.
[[noreturn]] void refuse_option(const Launcher& launcher, const std::string& name,
                                const std::string& word);

// Of deepspeed's --include of one node, as localhost:0,1; 0: none, or of several.
std::int64_t included_devices(std::string_view include);

// Where accelerate's file says what its launcher's argument says; "": at the top; nothing: nowhere.
std::optional<std::string_view> section_of_argument(std::string_view name);

}  // namespace plimsoll::tools::launchers
