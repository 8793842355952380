#include "planner/loading/from_pretrained.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "models/mxfp4.h"
#include "models/storages.h"
#include "planner/memory/framework_overhead.h"

namespace plimsoll::planner::loading {

using models::PackedGemm;
using models::PackedStorage;

namespace {

bool is_before_5(const Question& question) {
  return question.strategy.transformers < kLoadsInOrder;
}

Bytes packed_bytes(const Question& question, const Weight& weight) {
  Bytes all;
  for (const models::PackedTensor& part :
       models::packed_tensors(*weight.packed, weight.unpacked, question.strategy.quantize->held_in))
    all += part.bytes();
  return all;
}

// get_total_byte_count. What AWQ has of a weight counts as it is; of bitsandbytes' a 4-bit weight
// counts half a byte a value, an 8-bit one a byte (param_element_size); before 5.0 all count as on
// meta but the head, tied or not (_get_tied_weight_keys), and of a packed model one half is asked
// for (get_accelerator_warm_up_factor).
std::int64_t warm_up_bytes(const Question& question, const LoadedModel& model) {
  Bytes all;
  for (const Weight& weight : model.weights) {
    if (weight.head && is_before_5(question)) continue;
    if (weight.packed == nullptr || is_before_5(question))
      all += storage(weight.elements, model.dtype);
    else if (weight.packed->grouped)
      all += packed_bytes(question, weight);
    else
      all += Bytes(weight.elements.value() * weight.packed->bits / 8);
  }
  return question.strategy.quantize && is_before_5(question) ? all.value() / 2 : all.value();
}

class Loader {
 public:
  Loader(const Question& question, LoadedModel& model, Device& device)
      : question_(question), model_(model), device_(device) {
    model_.blocks.assign(model_.weights.size(), std::nullopt);
  }

  void fetch(std::size_t i) {
    const Weight& weight = model_.weights[i];
    if (!weight.unpacks) return load(i);
    device_.at(weight.name);
    const std::int64_t scales = weight.elements.value() / models::kMxfp4Block;
    model_.packed.push_back(
        {i, device_.take(Bytes(weight.elements.value() / 2)), device_.take(Bytes(scales))});
  }

  // integrations/mxfp4.py, _convert_moe_packed_tensors: exponents in 32 bits, the values in rows of
  // 32, and those turned round.
  void unpack(const LoadedModel::Packed& from) {
    const Weight& weight = model_.weights[from.weight];
    device_.at(weight.name);
    const std::int64_t rows = weight.elements.value() / models::kMxfp4Block;
    const Device::Block exponents = device_.take(Count(rows), DType::int32);
    const Device::Block shifted = device_.take(Count(rows), DType::int32);
    device_.free(exponents);
    const Device::Block table = device_.take(Count(16), DType::bf16);
    const Device::Block values = device_.take(weight.elements, DType::bf16);
    for (std::int64_t done = 0; done < rows; done += kRowsAtOnce)
      for (int half = 0; half < 2; ++half)
        look_up(Count(std::min(rows - done, kRowsAtOnce) * models::kMxfp4Block / 2));
    model_.blocks[from.weight] = device_.take(weight.elements, DType::bf16);
    device_.free(shifted);
    device_.free(table);
    device_.free(values);
    device_.free(from.values);
    device_.free(from.scales);
  }

  void load(std::size_t i) {
    const Weight& weight = model_.weights[i];
    device_.at(weight.name);
    if (weight.packed != nullptr && (question_.load.packed || weight.packed->grouped))
      return load_packed(weight);
    const Device::Block loaded = materialize(weight);
    if (weight.packed == nullptr) {
      model_.blocks[i] = loaded;
      return;
    }
    // What was loaded lives until its conversion is done.
    if (weight.packed->gemm == PackedGemm::int8)
      to_int8(weight);
    else
      to_4_bits(weight);
    device_.free(loaded);
  }

  // Bnb4bitDeserialize, Bnb8bitDeserialize: what the checkpoint has of a weight is what the model
  // has, in the order of names (threads load, and may be ahead). A text or a mark of a few bytes
  // goes as it is read; what all scales are moved by stands in that text.
  void load_packed(const Weight& weight) {
    for (const models::PackedTensor& part : models::packed_tensors(
             *weight.packed, weight.unpacked, question_.strategy.quantize->held_in))
      device_.take(part.bytes());
    if (weight.packed->grouped) return;
    const bool rows = weight.packed->gemm == PackedGemm::int8;
    device_.take_and_free(rows ? Bytes(1) : Bytes(kStateText));
  }

 private:
  static constexpr std::int64_t kStateText = 180;  // quant_state.bitsandbytes__nf4, at most a block
  static constexpr std::int64_t kRowsAtOnce = std::int64_t{32768} * 1024;

  // Half of each byte as an index: in 8 bits, in 32, and in 64 for the kernel that reads the table.
  void look_up(Count values) {
    const Device::Block halves = device_.take(values, DType::uint8);
    const Device::Block index = device_.take(values, DType::int32);
    device_.free(halves);
    const Device::Block wide = device_.take(values, DType::int64);
    const Device::Block found = device_.take(values, DType::bf16);
    device_.free(wide);
    device_.free(found);
    device_.free(index);
  }

  // 5.0 casts on the host (torch's copy to a device casts before it copies); before, safetensors
  // loads to the device, where it is cast.
  Device::Block materialize(const Weight& weight) {
    const DType own = question_.model->checkpoint_dtype.value_or(model_.dtype);
    if (!is_before_5(question_) || own == model_.dtype)
      return device_.take(weight.elements, model_.dtype);
    const Device::Block raw = device_.take(weight.elements, own);
    const Device::Block cast = device_.take(weight.elements, model_.dtype);
    device_.free(raw);
    return cast;
  }

  // Int8Params._quantize, of a weight that went to the host for that: a copy in fp16, then rows'
  // scales and values.
  void to_int8(const Weight& weight) {
    const Device::Block copy = device_.take(weight.elements, DType::fp16);
    device_.take(Count(weight.unpacked.out), weight.packed->scale);
    device_.take(weight.elements, DType::int8);
    device_.free(copy);
  }

  // Params4bit._quantize: quantize_4bit of the weight as it is, of GPT-2's turned round; before 5.0
  // of a copy, as the weight went to the host.
  void to_4_bits(const Weight& weight) {
    std::optional<Device::Block> copy;
    if (weight.transposed || is_before_5(question_))
      copy = device_.take(weight.elements, model_.dtype);
    quantize_4bit(weight);
    if (copy) device_.free(*copy);
  }

  void quantize_4bit(const Weight& weight) {
    const PackedStorage& of = *weight.packed;
    const auto parts =
        models::packed_tensors(of, weight.unpacked, question_.strategy.quantize->held_in);
    const Count scales = parts[1].elements;
    const Device::Block absmax = device_.take(scales, DType::fp32);
    device_.take(parts[0].bytes());
    // get_4bit_type divides the table by its largest value.
    device_.take(Count(of.table), DType::fp32);
    const Device::Block magnitudes = device_.take(Count(of.table), DType::fp32);
    device_.take_and_free(storage(Count(1), DType::fp32));
    device_.free(magnitudes);
    if (!of.doubly_quantized()) return;
    device_.take(Count(of.offsets), DType::fp32);
    const Device::Block moved = device_.take(scales, DType::fp32);
    // quantize_blockwise: the values that packed scales stand for, made once (name2qmap), and a
    // copy for each weight.
    if (!std::exchange(has_table_, true)) device_.take(Count(of.scale_table), DType::fp32);
    device_.take(parts[3].bytes());
    device_.take(parts[1].bytes());
    device_.take(Count(of.scale_table), DType::fp32);
    device_.free(moved);
    device_.free(absmax);
  }

  const Question& question_;
  LoadedModel& model_;
  Device& device_;
  bool has_table_ = false;
};

// 5.0 sorts all tensors; before, they come as a file lists them, which save_pretrained sorts by
// name.
std::vector<std::size_t> order_of(const Question& question, const LoadedModel& model) {
  std::vector<std::size_t> order(model.weights.size());
  std::iota(order.begin(), order.end(), 0U);
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
    const std::string &first = model.weights[a].name, &second = model.weights[b].name;
    return is_before_5(question) ? first < second : comes_before(first, second);
  });
  return order;
}

}  // namespace

void take_buffers(const Question& question, Device& device) {
  const models::Decoder& d = *question.model->decoder;
  // Gemma's embedding has its scale as a buffer.
  if (d.embedding_scale == models::EmbeddingScale::module && !is_before_5(question)) {
    device.at("embed_tokens.embed_scale");
    device.take(Count(1), DType::fp32);
  }
  if (d.position != models::PositionKind::rope) return;
  device.at("rotary_emb.inv_freq");
  const int copies = question.strategy.transformers < models::kRotaryCopiesFrequencies ? 1 : 2;
  for (int i = 0; i < copies; ++i) device.take(Count(d.rotated() / 2), DType::fp32);
}

// caching_allocator_warmup: one block as large as the model less what the cache holds, at once
// given back to the cache; at most what the device has less 1.2 GiB.
void warm_up(const Question& question, const LoadedModel& model, Device& device) {
  device.at("caching_allocator_warmup");
  // "auto" asks the device how much it has (accelerate, utils/modeling.py, get_max_memory).
  if (question.load.device_map) device.take_and_free(storage(Count(1), DType::int64));
  std::int64_t bytes = warm_up_bytes(question, model);
  const std::int64_t unused = device.unused().value();
  // From 5.0 on less than that is not worth a block.
  bytes = is_before_5(question) || bytes - unused > unused
              ? std::max<std::int64_t>(0, bytes - unused)
              : 0;
  if (const std::optional<Bytes> total = capacity_of(question).total) {
    const Bytes used =
        is_before_5(question) ? framework_overhead_of(question).typical.total() : 0_B;
    const double most = std::max(0.0, (*total - used).real() - 1.2 * 1024 * 1024 * 1024);
    if (static_cast<double>(bytes) > most) bytes = static_cast<std::int64_t>(most);
  }
  if (bytes / 2 > 0) device.take_and_free(Bytes(bytes / 2 * 2));
}

void from_pretrained(const Question& question, LoadedModel& model, Device& device) {
  Loader loader(question, model, device);
  // Four threads load while one unpacks: as far as the next that is to be unpacked.
  std::size_t unpacked = 0;
  for (const std::size_t i : order_of(question, model)) {
    loader.fetch(i);
    if (model.packed.size() > unpacked + 1) loader.unpack(model.packed[unpacked++]);
  }
  while (unpacked < model.packed.size()) loader.unpack(model.packed[unpacked++]);
  take_buffers(question, device);
  // Mxfp4HfQuantizer, _process_model_after_weight_loading.
  if (!model.packed.empty()) device.empty_cache();
  // AwqQuantizer's: gptqmodel 7.3.4, utils/model.py, gptqmodel_post_init.
  const auto& quantize = question.strategy.quantize;
  if (quantize && quantize->storage->gemm == PackedGemm::awq) device.empty_cache();
}

}  // namespace plimsoll::planner::loading
