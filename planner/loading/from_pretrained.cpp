#include "planner/loading/from_pretrained.h"

#include <algorithm>
#include <numeric>

#include "models/mxfp4.h"
#include "models/storages.h"
#include "planner/memory/framework_overhead.h"

namespace plimsoll::planner::loading {

using models::PackedGemm;

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
  Loader(const Question& question, LoadedModel& model, Packer& packer, Device& device)
      : question_(question), model_(model), packer_(packer), device_(device) {
    model_.blocks.resize(model_.weights.size());
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
    model_.blocks[from.weight] = {device_.take(weight.elements, DType::bf16)};
    device_.free(shifted);
    device_.free(table);
    device_.free(values);
    device_.free(from.values);
    device_.free(from.scales);
  }

  void load(std::size_t i) {
    const Weight& weight = model_.weights[i];
    device_.at(weight.name);
    if (weight.packed != nullptr && (question_.load.packed || weight.packed->grouped)) {
      model_.blocks[i] = packer_.load_packed(weight);
      return;
    }
    const Device::Block loaded = materialize(weight);
    if (weight.packed == nullptr) {
      model_.blocks[i] = {loaded};
      return;
    }
    // What was loaded lives until its conversion is done.
    model_.blocks[i] = packer_.pack(weight, model_.dtype, source_of(weight));
    device_.free(loaded);
  }

 private:
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

  // Before 5.0 a weight went to the host to be packed; GPT-2's is turned round for that.
  Packer::Source source_of(const Weight& weight) const {
    return weight.transposed || is_before_5(question_) ? Packer::Source::copied
                                                       : Packer::Source::there;
  }

  const Question& question_;
  LoadedModel& model_;
  Packer& packer_;
  Device& device_;
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

void from_pretrained(const Question& question, LoadedModel& model, Packer& packer, Device& device) {
  Loader loader(question, model, packer, device);
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
