// A layer's nodes (models/block.h) as the ops of our own runtime, in the order of its forward pass:
// what runs in one op, in which tensor a value lies, and what it is called.
//
// GEMMs of one input stand together, where the first of them stands; norms of their results
// follow them. An activation and the product with its other half are one op. The rotation works in
// place, dropout and a scale belong to the sum that reads them, and views are columns of the value
// that they are taken from. The branches of a parallel residual are added to the stream one by one,
// each as soon as it is made.
#pragma once

#include <array>
#include <bitset>
#include <string>
#include <vector>

#include "models/block.h"
#include "models/decisions/names.h"
#include "models/decoder.h"
#include "models/run_spec.h"

namespace plimsoll::models::decisions {

inline constexpr std::size_t kMostValues = 64, kMostLayerOps = 32, kMostModules = 32;
using ValueSet = std::bitset<kMostValues>;
using LayerOpSet = std::bitset<kMostLayerOps>;

enum class LayerOpKind : std::uint8_t {
  norm,  // in: x
  gemms,  // in: x; each has a result of its own
  rotary,  // in: q, k
  attention,  // in: q, k, v
  activation,  // in: x, and what the result is multiplied with, or none
  residual,  // in: the stream, the branch, whose tensor the sum takes over
  experts,  // in: the router's logits, x
};

// What an op reads: a value, or columns of it (GPT-2's q, k and v lie side by side). Columns may be
// of each of some heads: those begin `step` elements apart, 0: side by side.
struct ValuePart {
  ValueId value = kNoValue;
  std::int64_t first = 0, width = 0;
  std::int64_t step = 0;
  explicit operator bool() const { return value != kNoValue; }
};

// Dropout draws from a stream of random numbers for each place of a layer.
inline constexpr std::uint8_t kAttentionSite = 0, kFirstSumSite = 1, kFirstGemmSite = 3;
inline constexpr std::uint8_t kLayerSites = 16;

struct GemmOp {
  std::int16_t module = -1;  // of Block::modules
  ValueId out = kNoValue;
  std::uint8_t site = 0;  // of its adapter's dropout
  LinearNames names{};
};

struct LayerOp {
  LayerOpKind kind = LayerOpKind::residual;
  std::array<ValuePart, 3> in;
  ValueId out = kNoValue;  // but for GEMMs and rotary
  const char* name = "";  // of the op, both ways; GEMMs have their own
  std::vector<GemmOp> gemms;
  std::int16_t module = -1;  // a norm's, the experts'
  NormNames norm{};
  // A norm whose input nobody else reads, or an activation: where backward does not want the input,
  // the result takes its place.
  bool may_replace = false;
  AttentionNames attention{};
  ExpertsNames experts{};
  bool normalizes = false;  // experts: a token's scores have the sum 1
  bool sliding = false;  // attention: to the decoder's window
  bool soft_cap = false;  // of attention's scores
  Activation activation = Activation::silu;
  double dropout = 0;  // of a sum's branch
  bool scaled = false;  // a sum's branch: by models::Numerics::residual_scale
  std::uint8_t site = 0;
};

struct LayerValue {
  const char* name = "";  // of its tensor
  const char* gradient = "";  // where that is a tensor of its own
  std::int64_t width = 0;
  std::int8_t producer = -1;  // of the ops; -1: the layer's input
};

struct LayerOps {
  std::vector<LayerOp> ops;
  std::vector<LayerValue> values;  // by ValueId; those that are views of others have no producer
  std::vector<Module> modules;  // the block's
  ValueId output = kNoValue;
  ValueId last_branch = kNoValue;  // whose tensor becomes the output
  // Why our own runtime does not have this layer; else "".
  std::string refusal;
};

LayerOps layer_ops(const Block& block);

// Error{unsupported}: our own runtime does not have what comes before or after the layers, or does
// not make such layers again in this way. What check_layers() throws.
void check_decoder(const Decoder& decoder, const Recompute& recompute);

// Error{unsupported}: layers of `kinds` kinds are not made again in this way.
void check_kinds(std::size_t kinds, const Recompute& recompute);

// The ops of a block. Error{unsupported}: our own runtime does not have its layer.
const LayerOps& own_ops(const Block& block);

}  // namespace plimsoll::models::decisions
