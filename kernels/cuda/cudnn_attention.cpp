// Streaming attention by cuDNN's fused engines, for fast mode: causal, 16 bits, no dropout.
//
// Backward needs, besides what the graph's plan asks for, d_q in fp32 and the row sums of
// d_out · out. Where the scratch does not hold that for all sequences, a call has some of them, or
// some key heads of one.
//
// Of the heuristic's first plans the fastest by the clock is taken, at the shape's first call.
#include <cuda_runtime.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "kernels/cuda/attention_library.h"
#include "kernels/cuda/cudnn_sdpa.h"

namespace plimsoll::kernels::cuda {

namespace {

void require(cudaError_t status, const char* what) {
  check(status == cudaSuccess, ErrorKind::device,
        [&] { return std::string(what) + ": " + cudaGetErrorString(status); });
}

constexpr std::size_t kCandidates = 3;  // that are timed

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
  if (s.cap > 0) return "a soft cap of the scores";
  if (s.head_dim % 8 != 0) return "a head_dim that is no multiple of 8";
  for (const ConstColumns& x : operands) {
    if (x.tensor.dtype != dtype) return "operands of two dtypes";
    if (!aligned(x)) return "heads that do not begin at multiples of 16 bytes";
    if (x.step > 0) return "heads that lie apart";
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

std::string text_of(const SdpaShape& s) {
  return std::string(s.d_out > 0 ? "backward" : "forward") +
         (s.dtype == CUDNN_DATA_BFLOAT16 ? " bf16 " : " fp16 ") + std::to_string(s.sequences) +
         " x " + std::to_string(s.heads) + "/" + std::to_string(s.kv_heads) + " x " +
         std::to_string(s.length) + " x " + std::to_string(s.head_dim);
}

// Of what is queued on a stream from now on.
class Timer {
 public:
  explicit Timer(cudaStream_t stream) : stream_(stream) {
    require(cudaEventCreate(&begin_), "cudaEventCreate");
    require(cudaEventCreate(&end_), "cudaEventCreate");
    require(cudaEventRecord(begin_, stream_), "cudaEventRecord");
  }
  ~Timer() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;
  double seconds() {
    float milliseconds = 0;
    require(cudaEventRecord(end_, stream_), "cudaEventRecord");
    require(cudaEventSynchronize(end_), "cudaEventSynchronize");
    require(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime");
    return milliseconds * 1e-3;
  }

 private:
  cudaStream_t stream_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

class CudnnAttention : public AttentionLibrary {
 public:
  CudnnAttention() : device_(device_properties(current_device())) {
    // The loaded library may be another than the one of the build; 9.8 has the description of a
    // device that plans are made for.
    check(cudnnGetVersion() >= 90800, ErrorKind::unsupported,
          [] { return "cuDNN " + std::to_string(cudnnGetVersion()) + ": 9.8 or later is needed"; });
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
    Planned& planned = planned_for(shape);
    const GraphPlan& plan = *planned.plan;
    if (!planned.refusal.empty()) return refuse("forward: " + planned.refusal);
    const TensorView& workspace = current_launch().workspace;
    const std::int64_t bytes = bytes_of(workspace);
    if (bytes < plan.workspace_bytes())
      return refuse("forward: needs a workspace of " + std::to_string(plan.workspace_bytes()) +
                    " bytes, the launch has " + std::to_string(bytes));
    return run("forward: ", planned, {kQ, kK, kV, kOut, kLogsumexp, kScale, kHidden},
               {begin(x.q), begin(x.k), begin(x.v), begin(ConstColumns(x.out)),
                const_cast<void*>(x.logsumexp.data), scale(s), hidden()},
               workspace.data, [] {});
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
          const Planned& planned = planned_for(shape);
          return planned.refusal.empty() ? std::optional(planned.plan->workspace_bytes())
                                         : std::nullopt;
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
      const std::string& none = planned_for(rest).refusal;
      if (!none.empty()) return refuse("backward: " + none);
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
  std::string version() const override { return std::to_string(cudnnGetVersion()); }
  std::vector<LibraryChoice> choices() const override {
    std::vector<LibraryChoice> found;
    for (const auto& [shape, planned] : plans_) {
      if (!planned.fastest) continue;
      found.push_back({"cudnn", text_of(shape),
                       "engine " + std::to_string(planned.plan->engine(*planned.fastest)) + " (" +
                           std::to_string(*planned.fastest + 1) + " of " +
                           std::to_string(planned.plan->candidates()) + ")",
                       planned.seconds});
    }
    return found;
  }

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

  // A graph, its plans, and which of them it is, once that is known.
  struct Planned {
    Graph graph;
    std::optional<GraphPlan> plan;
    std::optional<std::size_t> fastest;
    std::optional<double> seconds;
    std::string refusal;  // why it is not asked (again), or nothing
  };
  Planned& planned_for(const SdpaShape& shape) {
    const auto found = plans_.find(shape);
    if (found != plans_.end()) return found->second;
    Planned planned{shape.d_out > 0 ? sdpa_backward(shape) : sdpa_forward(shape), {}, {}, {}, {}};
    planned.plan.emplace(planned.graph, device_, kCandidates);
    planned.refusal = planned.plan->refusal();
    return plans_.try_emplace(shape, std::move(planned)).first->second;
  }

  bool backward_part(const AttentionShape& s, const AttentionOperands& x, const SdpaShape& part,
                     std::int64_t first, std::int64_t key_head) {
    Planned& planned = planned_for(part);
    const SdpaScratch at = scratch_of(part, planned.plan->workspace_bytes());
    auto* scratch = static_cast<std::byte*>(x.scratch.data);
    const std::int64_t head = key_head * (s.heads / s.kv_heads);
    const auto queries = [&](const ConstColumns& c) {
      return begin(c, first * s.length * c.stride() + head * s.head_dim);
    };
    const auto keys = [&](const ConstColumns& c) {
      return begin(c, first * s.length * c.stride() + key_head * s.head_dim);
    };
    // The sequences' from `first` on, or some heads of one.
    auto* logsumexp = const_cast<float*>(static_cast<const float*>(x.logsumexp.data)) +
                      (first * s.heads + head) * s.length;
    return run("backward: ", planned,
               {kQ, kK, kV, kOut, kDOut, kDQ, kDK, kDV, kLogsumexp, kScale, kHidden, kKept,
                kRowSums, kDQSum},
               {queries(x.q), keys(x.k), keys(x.v), queries(ConstColumns(x.out)),
                queries(ConstColumns(x.d_out)), queries(x.d_q), keys(x.d_k), keys(x.d_v), logsumexp,
                scale(s), hidden(), &kept_, scratch + at.row_sums, scratch + at.d_q_sum},
               scratch + at.workspace, [&] {
                 require(cudaMemsetAsync(scratch + at.d_q_sum, 0,
                                         static_cast<std::size_t>(at.workspace - at.d_q_sum),
                                         current_launch().stream),
                         "cudaMemsetAsync");
               });
  }

  // `clear`: queues what must be there before each run.
  template <class Clear>
  bool run(const char* which, Planned& planned, const std::vector<std::int64_t>& uids,
           const std::vector<void*>& addresses, void* workspace, Clear clear) {
    kernels::cuda::require(cudnnSetStream(handle_, current_launch().stream), "the stream");
    const auto execute = [&](std::size_t candidate) {
      clear();
      return planned.plan->execute(candidate, handle_, uids, addresses, workspace);
    };
    if (!planned.fastest) tune(planned, execute);
    if (!planned.fastest) {
      // A plan for the device as it describes itself that does not run: once more, for the handle.
      GraphPlan again(planned.graph, device_, kCandidates, handle_);
      if (again.refusal().empty() && again.workspace_bytes() <= planned.plan->workspace_bytes()) {
        planned.plan.emplace(std::move(again));
        tune(planned, execute);
      }
    }
    const cudnnStatus_t status = execute(planned.fastest.value_or(0));
    if (status == CUDNN_STATUS_SUCCESS) return true;
    // Not tried again: our own kernel has these from now on.
    planned.refusal = std::string("cuDNN does not run its plan: ") + cudnnGetErrorString(status);
    return refuse(which + planned.refusal);
  }

  // The fastest of the candidates that run, by the best of a few runs in turn.
  template <class Execute>
  void tune(Planned& planned, Execute execute) {
    constexpr int kRounds = 4;  // the first of each loads it
    constexpr double none = std::numeric_limits<double>::infinity();
    std::vector<double> least(planned.plan->candidates(), none);
    std::vector<bool> runs(least.size(), true);
    for (int round = 0; round < kRounds; ++round)
      for (std::size_t i = 0; i < least.size(); ++i) {
        if (!runs[i]) continue;
        Timer timer(current_launch().stream);
        runs[i] = execute(i) == CUDNN_STATUS_SUCCESS;
        if (runs[i] && round > 0) least[i] = std::min(least[i], timer.seconds());
      }
    const auto best = std::ranges::min_element(least);
    if (best == least.end() || *best == none) return;
    planned.fastest = static_cast<std::size_t>(best - least.begin());
    planned.seconds = *best;
  }

  Descriptor device_;
  cudnnHandle_t handle_ = nullptr;
  std::map<SdpaShape, Planned> plans_;
  std::map<std::string, std::int64_t> refusals_;
  // Read by cuDNN from here.
  float scale_ = 1, hidden_ = -std::numeric_limits<float>::infinity(), kept_ = 1;
};

}  // namespace

std::unique_ptr<AttentionLibrary> cudnn_attention() {
  return std::make_unique<CudnnAttention>();
}

}  // namespace plimsoll::kernels::cuda
