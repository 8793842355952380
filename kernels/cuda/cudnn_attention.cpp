// Streaming attention by cuDNN's fused engines, for fast mode: causal, 16 bits, no dropout.
//
// Backward needs, besides what the graph's plan asks for: d_q in fp32, the row sums of d_out · out,
// and log-sum-exp packed by head, because cuDNN takes it in no other order before 9.26. Where the
// scratch does not hold that for all sequences, a call has some of them, or some key heads of one.
#include <cuda_runtime.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "kernels/cuda/attention_library.h"
#include "kernels/cuda/cudnn_sdpa.h"
#include "kernels/cuda/logsumexp_rows.h"

namespace plimsoll::kernels::cuda {

namespace {

void require(cudaError_t status, const char* what) {
  check(status == cudaSuccess, ErrorKind::device,
        [&] { return std::string(what) + ": " + cudaGetErrorString(status); });
}

bool aligned(const ConstColumns& x) {
  return reinterpret_cast<std::uintptr_t>(x.tensor.data) % 16 == 0 && x.stride() % 8 == 0 &&
         x.first % 8 == 0;
}

// Why cuDNN's graph is not for this call, or nothing.
std::string refusal(const AttentionShape& s, const Dropout& dropout,
                    std::initializer_list<ConstColumns> operands) {
  const DType dtype = operands.begin()->tensor.dtype;
  if (dtype != DType::bf16 && dtype != DType::fp16) return "storage " + std::string(name_of(dtype));
  if (dropout.rate > 0) return "dropout";
  if (s.window > 0) return "a sliding window";
  if (s.head_dim % 8 != 0) return "a head_dim that is no multiple of 8";
  for (const ConstColumns& x : operands) {
    if (x.tensor.dtype != dtype) return "operands of two dtypes";
    if (!aligned(x)) return "heads that do not begin at multiples of 16 bytes";
  }
  return {};
}

SdpaShape shape_of(const AttentionShape& s, const AttentionOperands& x) {
  return {.dtype = x.q.tensor.dtype == DType::bf16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF,
          .sequences = s.sequences,
          .heads = s.heads,
          .kv_heads = s.kv_heads,
          .length = s.length,
          .head_dim = s.head_dim,
          .q = x.q.stride(),
          .k = x.k.stride(),
          .v = x.v.stride(),
          .out = ConstColumns(x.out).stride(),
          .d_out = x.d_out ? ConstColumns(x.d_out).stride() : 0,
          .d_q = x.d_q.tensor ? x.d_q.stride() : 0,
          .d_k = x.d_k.tensor ? x.d_k.stride() : 0,
          .d_v = x.d_v.tensor ? x.d_v.stride() : 0};
}

class CudnnAttention : public AttentionLibrary {
 public:
  CudnnAttention() : device_(device_properties(current_device())) {
    kernels::cuda::require(cudnnCreate(&handle_), "cannot start on this device");
  }
  ~CudnnAttention() override { cudnnDestroy(handle_); }

  bool forward(const AttentionShape& s, const Dropout& dropout,
               const AttentionOperands& x) override {
    if (const std::string why = refusal(s, dropout, {x.q, x.k, x.v, ConstColumns(x.out)});
        !why.empty())
      return refuse("forward: " + why);
    if (!x.logsumexp) return refuse("forward: no log-sum-exp is wanted");
    const SdpaShape shape = shape_of(s, x);
    const GraphPlan& plan = plan_of(shape);
    if (!plan.refusal().empty()) return refuse("forward: " + plan.refusal());
    const TensorView& workspace = current_launch().workspace;
    const std::int64_t bytes = bytes_of(workspace);
    if (bytes < plan.workspace_bytes())
      return refuse("forward: needs a workspace of " + std::to_string(plan.workspace_bytes()) +
                    " bytes, the launch has " + std::to_string(bytes));
    return run("forward: ", plan, {kQ, kK, kV, kOut, kLogsumexp, kScale, kHidden},
               {begin(x.q), begin(x.k), begin(x.v), begin(ConstColumns(x.out)),
                const_cast<void*>(x.logsumexp.data), scale(s), hidden()},
               workspace.data);
  }

  bool backward(const AttentionShape& s, const Dropout& dropout,
                const AttentionOperands& x) override {
    const std::string why =
        refusal(s, dropout,
                {x.q, x.k, x.v, ConstColumns(x.out), ConstColumns(x.d_out), x.d_q, x.d_k, x.d_v});
    if (!why.empty()) return refuse("backward: " + why);
    if (reinterpret_cast<std::uintptr_t>(x.scratch.data) % 16 != 0)
      return refuse("backward: a scratch that does not begin at a multiple of 16 bytes");
    const std::optional<SdpaShape> fits =
        fitting_part(shape_of(s, x), bytes_of(x.scratch), [&](const SdpaShape& shape) {
          const GraphPlan& plan = plan_of(shape);
          return plan.refusal().empty() ? std::optional(plan.workspace_bytes()) : std::nullopt;
        });
    if (!fits)
      return refuse("backward: no plan, or none for a scratch of " +
                    std::to_string(bytes_of(x.scratch)) + " bytes");
    const SdpaShape& part = *fits;
    // All plans before the first launch: either all parts go, or none.
    const std::int64_t heads = part.kv_heads;
    for (const std::int64_t last : {s.sequences % part.sequences, s.kv_heads % heads}) {
      if (last == 0) continue;
      SdpaShape rest = part;
      (heads == s.kv_heads ? rest.sequences : rest.kv_heads) = last;
      rest.heads = rest.kv_heads * (s.heads / s.kv_heads);
      if (!plan_of(rest).refusal().empty()) return refuse("backward: " + plan_of(rest).refusal());
    }
    for (std::int64_t first = 0; first < s.sequences; first += part.sequences)
      for (std::int64_t head = 0; head < s.kv_heads; head += heads) {
        SdpaShape now = part;
        now.sequences = std::min(part.sequences, s.sequences - first);
        now.kv_heads = std::min(heads, s.kv_heads - head);
        now.heads = now.kv_heads * (s.heads / s.kv_heads);
        // What earlier parts have queued writes what our own kernels then write over.
        if (!backward_part(s, x, now, first, head)) return false;
      }
    return true;
  }

  std::map<std::string, std::int64_t> refusals() const override { return refusals_; }

 private:
  static int current_device() {
    int device = 0;
    require(cudaGetDevice(&device), "cudaGetDevice");
    return device;
  }
  static std::int64_t bytes_of(const TensorView& view) {
    return view ? storage(Count(view.elements()), view.dtype).value() : 0;
  }
  static void* begin(const ConstColumns& x, std::int64_t more = 0) {
    auto* data = static_cast<std::uint16_t*>(const_cast<void*>(x.tensor.data));
    return data + x.first + more;
  }
  void* scale(const AttentionShape& s) {
    scale_ = s.scale;
    return &scale_;
  }
  void* hidden() { return &hidden_; }

  bool refuse(const std::string& why) {
    ++refusals_[why];
    return false;
  }

  const GraphPlan& plan_of(const SdpaShape& shape) {
    const auto found = plans_.find(shape);
    if (found != plans_.end()) return found->second;
    return plans_
        .try_emplace(shape, shape.d_out > 0 ? sdpa_backward(shape) : sdpa_forward(shape), device_)
        .first->second;
  }

  bool backward_part(const AttentionShape& s, const AttentionOperands& x, const SdpaShape& part,
                     std::int64_t first, std::int64_t key_head) {
    const GraphPlan& plan = plan_of(part);
    const SdpaScratch at = scratch_of(part, plan.workspace_bytes());
    auto* scratch = static_cast<std::byte*>(x.scratch.data);
    const std::int64_t head = key_head * (s.heads / s.kv_heads);
    const auto queries = [&](const ConstColumns& c) {
      return begin(c, first * s.length * c.stride() + head * s.head_dim);
    };
    const auto keys = [&](const ConstColumns& c) {
      return begin(c, first * s.length * c.stride() + key_head * s.head_dim);
    };
    auto* logsumexp = reinterpret_cast<float*>(scratch + at.logsumexp);
    start_packing(static_cast<const float*>(x.logsumexp.data) + first * s.length * s.heads + head,
                  s.heads, part.sequences, part.heads, s.length, logsumexp);
    require(cudaMemsetAsync(scratch + at.d_q_sum, 0,
                            static_cast<std::size_t>(at.workspace - at.d_q_sum),
                            current_launch().stream),
            "cudaMemsetAsync");
    return run("backward: ", plan,
               {kQ, kK, kV, kOut, kDOut, kDQ, kDK, kDV, kLogsumexp, kScale, kHidden, kKept,
                kRowSums, kDQSum},
               {queries(x.q), keys(x.k), keys(x.v), queries(ConstColumns(x.out)),
                queries(ConstColumns(x.d_out)), queries(x.d_q), keys(x.d_k), keys(x.d_v), logsumexp,
                scale(s), hidden(), &kept_, scratch + at.row_sums, scratch + at.d_q_sum},
               scratch + at.workspace);
  }

  bool run(const char* which, const GraphPlan& plan, const std::vector<std::int64_t>& uids,
           const std::vector<void*>& addresses, void* workspace) {
    kernels::cuda::require(cudnnSetStream(handle_, current_launch().stream), "the stream");
    const cudnnStatus_t status = plan.execute(handle_, uids, addresses, workspace);
    if (status == CUDNN_STATUS_SUCCESS) return true;
    return refuse(which + std::string("cuDNN does not run its plan: ") +
                  cudnnGetErrorString(status));
  }

  Descriptor device_;
  cudnnHandle_t handle_ = nullptr;
  std::map<SdpaShape, GraphPlan> plans_;
  std::map<std::string, std::int64_t> refusals_;
  // Read by cuDNN from here.
  float scale_ = 1, hidden_ = -std::numeric_limits<float>::infinity(), kept_ = 1;
};

}  // namespace

std::unique_ptr<AttentionLibrary> cudnn_attention() {
  return std::make_unique<CudnnAttention>();
}

}  // namespace plimsoll::kernels::cuda
