// Other people's training programs: defaults of this one's options, each with where it was read.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace plimsoll::models {

// Which base a default is of: any; one that bitsandbytes packs; one that it packs in 4 bits,
// trained with bf16 and not sharded.
enum class TrainerBase : std::uint8_t { any, packed, packed_in_4_bits_with_bf16 };

struct TrainerDefault {
  std::string_view option, value;  // "zero", "3"
  std::string_view source;  // file and key in the trainer's own repository
  std::string_view before_ampere = {};  // below compute capability 8.0 of NVIDIA; empty: as else
  TrainerBase base = TrainerBase::any;
};
std::string_view name_of(TrainerBase base);  // as `plimsoll trainers` says it; empty: any

struct Trainer {
  std::string_view name, version, title;
  std::string_view source;  // repository and revision
  std::span<const TrainerDefault> defaults;
  std::string_view beside;  // what it does and no option says
};

// Of each name the newest first.
std::span<const Trainer> trainers();

// "torchtitan@2024-12", or "torchtitan": its newest. nullptr: not known.
const Trainer* find_trainer(std::string_view name);

}  // namespace plimsoll::models
