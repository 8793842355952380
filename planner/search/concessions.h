// What a search gives up where nothing else fits, least first: it is asked for, never taken where a
// plan fits without it.
#pragma once

#include <span>

#include "planner/search/axes.h"

namespace plimsoll::planner::search {

// Powers of two, so that sums keep the order: adapters in the place of the model; training that
// keeps 16-bit weights alone, whose small updates are lost; a runtime that nobody has run on a GPU
// yet; optimizer states in 8 bits; a frozen base in 4; and transfers to the host in every step,
// whose time is not predicted: of a packed base (Answer.AI's FSDP-QLoRA), or of one four times as
// large.
enum Concession : std::uint8_t {
  kAdapters = 1,
  kOtherNumerics = 2,
  kUntriedStack = 4,
  kStatesIn8Bits = 8,
  kPackedBase = 16,
  kOffloadsPacked = 32,
  kOffloads = 64,
};
// None of these, and what costs neither digits of the model nor a speed that is predicted.
constexpr int kMostWithoutPacking = kStatesIn8Bits - 1;

// The sums that settings have.
std::span<const int> concession_sums();

inline bool concedes(const Setting& x, Concession what) {
  return (x.concession & what) != 0;
}

// Setting::parts: adapters of the search's own, 1; and a base that it packs, in integers or, where
// it is sharded, in floats.
constexpr std::uint8_t kOwnAdapters = 1, kPackedInIntegers = 2, kPackedInFloats = 4;
constexpr std::size_t kParts = 6;

// The base's strategy with these parts.
models::Strategy with_parts(const Question& base, std::uint8_t parts);

// Axes (axes.cpp).
void adapters(const Scope& scope, const Setting& so_far, std::vector<Setting>& out);
void quantizations(const Scope& scope, const Setting& so_far, std::vector<Setting>& out);
void optimizers(const Scope& scope, const Setting& so_far, std::vector<Setting>& out);
void offloads(const Scope& scope, const Setting& so_far, std::vector<Setting>& out);
std::string adapters_option(const Setting&x), quantize_option(const Setting&x),
    optimizer_option(const Setting&x), offload_option(const Setting&x);

// Whether what the search itself conceded can be sharded so.
bool takes_stage(const Setting& x, int stage);
// A sharded base is held in floats.
void hold_packed(Setting& x);

}  // namespace plimsoll::planner::search
