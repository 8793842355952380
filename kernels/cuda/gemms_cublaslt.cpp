// GEMMs by cuBLASLt. Deterministic mode takes the heuristic's first algorithm; fast mode times
// the first few on the operands at hand, once for each shape, and remembers on disk which was best.
//
// A GPU that has been idle runs at low clocks, and its clocks wander: what is timed first would
// lose. So the first tuning begins with work that counts for nothing, candidates take turns, and
// the fastest of each one's runs counts.
#include <cublasLt.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/cuda/algorithm_cache.h"
#include "kernels/cuda/library_call.h"
#include "kernels/cuda/loaded_library.h"

namespace plimsoll::kernels::cuda {

namespace {

// The functions of cuBLASLt that are used, loaded with the first of them.
namespace lt {
const LoadedLibrary library("libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR));
template <class Function>
using Loaded = LoadedFunction<Function>;
const Loaded<decltype(cublasLtCreate)> create(library, "cublasLtCreate");
const Loaded<decltype(cublasLtDestroy)> destroy(library, "cublasLtDestroy");
const Loaded<decltype(cublasLtGetStatusString)> get_status_string(library,
                                                                  "cublasLtGetStatusString");
const Loaded<decltype(cublasLtGetVersion)> get_version(library, "cublasLtGetVersion");
const Loaded<decltype(cublasLtMatmul)> matmul(library, "cublasLtMatmul");
const Loaded<decltype(cublasLtMatmulAlgoCheck)> matmul_algo_check(library,
                                                                  "cublasLtMatmulAlgoCheck");
const Loaded<decltype(cublasLtMatmulAlgoConfigGetAttribute)> matmul_algo_config_get_attribute(
    library, "cublasLtMatmulAlgoConfigGetAttribute");
const Loaded<decltype(cublasLtMatmulAlgoGetHeuristic)> matmul_algo_get_heuristic(
    library, "cublasLtMatmulAlgoGetHeuristic");
const Loaded<decltype(cublasLtMatmulDescCreate)> matmul_desc_create(library,
                                                                    "cublasLtMatmulDescCreate");
const Loaded<decltype(cublasLtMatmulDescDestroy)> matmul_desc_destroy(library,
                                                                      "cublasLtMatmulDescDestroy");
const Loaded<decltype(cublasLtMatmulDescSetAttribute)> matmul_desc_set_attribute(
    library, "cublasLtMatmulDescSetAttribute");
const Loaded<decltype(cublasLtMatmulPreferenceCreate)> matmul_preference_create(
    library, "cublasLtMatmulPreferenceCreate");
const Loaded<decltype(cublasLtMatmulPreferenceDestroy)> matmul_preference_destroy(
    library, "cublasLtMatmulPreferenceDestroy");
const Loaded<decltype(cublasLtMatmulPreferenceSetAttribute)> matmul_preference_set_attribute(
    library, "cublasLtMatmulPreferenceSetAttribute");
const Loaded<decltype(cublasLtMatrixLayoutCreate)> matrix_layout_create(
    library, "cublasLtMatrixLayoutCreate");
const Loaded<decltype(cublasLtMatrixLayoutDestroy)> matrix_layout_destroy(
    library, "cublasLtMatrixLayoutDestroy");
}  // namespace lt

constexpr int kCandidates = 12, kRounds = 5, kAtOnce = 2;
// After kTrials rounds only those stay that are at most so much slower than the fastest.
constexpr int kTrials = 2;
constexpr float kInReach = 1.15f;
constexpr double kWarmSeconds = 0.2;

void require(cublasStatus_t status, const char* what) {
  check(status == CUBLAS_STATUS_SUCCESS, ErrorKind::device,
        [&] { return std::string("cuBLASLt: ") + what + ": " + lt::get_status_string(status); });
}
void require(cudaError_t status, const char* what) {
  check(status == cudaSuccess, ErrorKind::device,
        [&] { return std::string(what) + ": " + cudaGetErrorString(status); });
}

template <const auto& kDestroy>
struct Destroy {
  template <class T>
  void operator()(T* at) const {
    kDestroy(at);
  }
};
template <class T, const auto& kDestroy>
using Handle = std::unique_ptr<std::remove_pointer_t<T>, Destroy<kDestroy>>;
using Library = Handle<cublasLtHandle_t, lt::destroy>;
using Operation = Handle<cublasLtMatmulDesc_t, lt::matmul_desc_destroy>;
using Layout = Handle<cublasLtMatrixLayout_t, lt::matrix_layout_destroy>;
using Preference = Handle<cublasLtMatmulPreference_t, lt::matmul_preference_destroy>;
using Event = Handle<cudaEvent_t, cudaEventDestroy>;

cudaDataType_t type_of(DType dtype) {
  if (dtype == DType::fp8_e4m3) return CUDA_R_8F_E4M3;
  if (dtype == DType::fp8_e5m2) return CUDA_R_8F_E5M2;
  return dtype == DType::bf16 ? CUDA_R_16BF : dtype == DType::fp16 ? CUDA_R_16F : CUDA_R_32F;
}

template <class T>
void set(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  require(lt::matmul_desc_set_attribute(operation, attribute, &value, sizeof(value)),
          "an attribute of the GEMM");
}
template <class T>
void prefer(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
            const T& value) {
  require(lt::matmul_preference_set_attribute(preference, attribute, &value, sizeof(value)),
          "a preference");
}

Operation operation_of(const LibraryCall& call) {
  cublasLtMatmulDesc_t made = nullptr;
  require(lt::matmul_desc_create(
              &made, call.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F),
          "a GEMM");
  Operation operation(made);
  const auto turn = [](bool transposed) { return transposed ? CUBLAS_OP_T : CUBLAS_OP_N; };
  set(made, CUBLASLT_MATMUL_DESC_TRANSA, turn(call.a.transposed));
  set(made, CUBLASLT_MATMUL_DESC_TRANSB, turn(call.b.transposed));
  if (call.bias) {
    set(made, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(made, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(call.d.dtype));
  }
  if (call.fast_sums) set(made, CUBLASLT_MATMUL_DESC_FAST_ACCUM, std::int8_t{1});
  return operation;
}

Layout layout_of(const LibraryMatrix& x) {
  cublasLtMatrixLayout_t made = nullptr;
  require(lt::matrix_layout_create(&made, type_of(x.dtype), static_cast<std::uint64_t>(x.rows),
                                   static_cast<std::uint64_t>(x.columns), x.stride),
          "a matrix");
  return Layout(made);
}

Preference preference_of(const LibraryCall& call) {
  cublasLtMatmulPreference_t made = nullptr;
  require(lt::matmul_preference_create(&made), "preferences");
  Preference preference(made);
  prefer(made, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
         static_cast<std::size_t>(call.workspace_bytes));
  // Parts of a sum are added in fp32: a result of 16 bits is rounded once.
  prefer(made, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    prefer(made, attribute, static_cast<std::uint32_t>(call.alignment));
  return preference;
}

// A GEMM with all but its addresses and factors.
struct Plan {
  LibraryCall call;
  Operation operation;
  Layout a, b, d;
  std::vector<cublasLtMatmulAlgo_t> algorithms;  // the heuristic's, best first; none: refused
  std::optional<std::size_t> fastest;  // of `algorithms`, once that is known
  std::optional<double> seconds;  // of the fastest, where it was timed

  explicit Plan(const LibraryCall& c)
      : call(c),
        operation(operation_of(c)),
        a(layout_of(c.a)),
        b(layout_of(c.b)),
        d(layout_of(c.d)) {}
};

struct Addresses {
  const void *a, *b, *bias;
  const void *a_scale, *b_scale;
  void* d;
  void* workspace;
  float scale;
  CUstream_st* stream;
};

cublasStatus_t queue(cublasLtHandle_t library, const Plan& p, const Addresses& at,
                     const cublasLtMatmulAlgo_t& algorithm) {
  if (p.call.bias) set(p.operation.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, at.bias);
  if (p.call.scaled) {
    set(p.operation.get(), CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, at.a_scale);
    set(p.operation.get(), CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, at.b_scale);
  }
  const float beta = p.call.accumulate ? 1.0f : 0.0f;
  return lt::matmul(library, p.operation.get(), &at.scale, at.a, p.a.get(), at.b, p.b.get(), &beta,
                    at.d, p.d.get(), at.d, p.d.get(), &algorithm, at.workspace,
                    static_cast<std::size_t>(p.call.workspace_bytes), at.stream);
}

std::string text_of(const cublasLtMatmulAlgo_t& algorithm) {
  std::string text;
  const auto add = [&](const char* name, cublasLtMatmulAlgoConfigAttributes_t attribute) {
    std::int32_t value = 0;  // all of these are four bytes
    std::size_t written = 0;
    if (lt::matmul_algo_config_get_attribute(&algorithm, attribute, &value, sizeof(value),
                                             &written) == CUBLAS_STATUS_SUCCESS)
      text += (text.empty() ? "" : " ") + std::string(name) + "=" + std::to_string(value);
  };
  add("id", CUBLASLT_ALGO_CONFIG_ID);
  add("tile", CUBLASLT_ALGO_CONFIG_TILE_ID);
  add("stages", CUBLASLT_ALGO_CONFIG_STAGES_ID);
  add("splitk", CUBLASLT_ALGO_CONFIG_SPLITK_NUM);
  return text;
}

Event event() {
  cudaEvent_t made = nullptr;
  require(cudaEventCreate(&made), "cudaEventCreate");
  return Event(made);
}

class CublasLt : public Gemms {
 public:
  explicit CublasLt(const GemmOptions& options) : cache_(options.autotune_cache) {
    cublasLtHandle_t made = nullptr;
    require(lt::create(&made), "cannot start on this device");
    library_.reset(made);
    int device = 0;
    cudaDeviceProp properties{};
    require(cudaGetDevice(&device), "cudaGetDevice");
    require(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
    where_ = "cublasLt=" + std::to_string(lt::get_version()) + " gpu=" + properties.name + "/" +
             std::to_string(properties.multiProcessorCount) + " ";
  }

  bool multiply(const Gemm& gemm, Columns c, TensorView workspace) override {
    const Launch& launch = current_launch();
    const LibraryCall call = library_call(gemm, c, workspace, launch.tf32);
    if (const std::string why = refusal(call, gemm); !why.empty()) return refuse(why);
    std::vector<LibraryPart> parts = parts_of(call);
    if (parts.size() > 1 && !std::ranges::all_of(parts, [&](const LibraryPart& part) {
          return !plan_of(part.call).algorithms.empty();
        }))
      parts = {{call}};
    for (const LibraryPart& part : parts) {
      Plan& plan = plan_of(part.call);
      if (plan.algorithms.empty()) return refuse("no algorithm for " + call.key());
      queue_part(plan, part, gemm, workspace, launch);
    }
    return true;
  }

  std::map<std::string, std::int64_t> refusals() const override { return refusals_; }
  std::string version() const override { return std::to_string(lt::get_version()); }
  std::vector<LibraryChoice> choices() const override {
    std::vector<LibraryChoice> found;
    for (const auto& [call, plan] : plans_)
      if (!plan.algorithms.empty())
        found.push_back({"cublaslt", call.key(),
                         text_of(plan.algorithms[plan.fastest.value_or(0)]) + " (" +
                             std::to_string(plan.fastest.value_or(0) + 1) + " of " +
                             std::to_string(plan.algorithms.size()) + ")",
                         plan.seconds});
    return found;
  }

 private:
  bool refuse(const std::string& why) {
    ++refusals_[why];
    return false;
  }

  void queue_part(Plan& plan, const LibraryPart& part, const Gemm& gemm,
                  const TensorView& workspace, const Launch& launch) {
    const LibraryCall& call = part.call;
    const auto* bias = static_cast<const std::byte*>(gemm.bias.data);
    if (bias) bias += part.bias_offset * (bits(call.d.dtype) / 8);
    const Addresses at{.a = call.a.data,
                       .b = call.b.data,
                       .bias = bias,
                       .a_scale = gemm.b_scale.data,  // our b is the library's a
                       .b_scale = gemm.a_scale.data,
                       .d = const_cast<void*>(call.d.data),
                       .workspace = workspace.data,
                       .scale = gemm.scale,
                       .stream = launch.stream};
    if (launch.mode == Mode::fast && !plan.fastest) tune(plan, at);
    const std::size_t which = launch.mode == Mode::fast ? *plan.fastest : 0;
    require(queue(library_.get(), plan, at, plan.algorithms[which]), call.key().c_str());
  }

  Plan& plan_of(const LibraryCall& call) {
    const auto found = plans_.find(call);
    if (found != plans_.end()) return found->second;
    Plan& plan = plans_.try_emplace(call, call).first->second;
    // A bias must be there for the heuristic; its address, which nobody reads, tells the alignment.
    if (call.bias)
      set(plan.operation.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER,
          reinterpret_cast<const void*>(call.alignment));  // NOLINT(performance-no-int-to-ptr)
    cublasLtMatmulHeuristicResult_t results[kCandidates];
    int count = 0;
    const cublasStatus_t status = lt::matmul_algo_get_heuristic(
        library_.get(), plan.operation.get(), plan.a.get(), plan.b.get(), plan.d.get(),
        plan.d.get(), preference_of(call).get(), kCandidates, results, &count);
    if (status != CUBLAS_STATUS_SUCCESS) count = 0;
    for (int i = 0; i < count; ++i)
      if (results[i].state == CUBLAS_STATUS_SUCCESS) plan.algorithms.push_back(results[i].algo);
    return plan;
  }

  // Appends what the cache has, or finds the fastest of the heuristic's.
  void tune(Plan& plan, const Addresses& at) {
    const std::string key = where_ + plan.call.key();
    if (const auto kept = cache_.find(key)) {
      cublasLtMatmulAlgo_t algorithm;
      static_assert(sizeof(algorithm) == sizeof(Algorithm));
      std::memcpy(&algorithm, kept->data(), sizeof(algorithm));
      if (works(plan, algorithm)) {
        plan.fastest = plan.algorithms.size();
        plan.algorithms.push_back(algorithm);
        return;
      }
    }
    const std::size_t best = measured(plan, at);
    plan.fastest = best;
    Algorithm words;
    std::memcpy(words.data(), &plan.algorithms[best], sizeof(words));
    cache_.add(key, words);
  }

  bool works(const Plan& plan, const cublasLtMatmulAlgo_t& algorithm) {
    cublasLtMatmulHeuristicResult_t result{};
    return lt::matmul_algo_check(library_.get(), plan.operation.get(), plan.a.get(), plan.b.get(),
                                 plan.d.get(), plan.d.get(), &algorithm,
                                 &result) == CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= static_cast<std::size_t>(plan.call.workspace_bytes);
  }

  // The index of the fastest algorithm. The result's memory is written over; what was added to is
  // kept on the host meanwhile, so that no device memory is taken.
  std::size_t measured(Plan& plan, const Addresses& at) {
    std::vector<std::byte> old;
    if (plan.call.accumulate) {
      const LibraryMatrix& d = plan.call.d;
      old.resize(static_cast<std::size_t>(
          storage(Count(d.stride * (d.columns - 1) + d.rows), d.dtype).value()));
      require(cudaStreamSynchronize(at.stream), "cudaStreamSynchronize");
      require(cudaMemcpy(old.data(), at.d, old.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
    }
    const std::size_t best = fastest(plan, at);
    if (!old.empty()) {
      // On the stream: cudaMemcpy may return before the last of pageable memory has arrived (CUDA
      // runtime API, "API synchronization behavior"), and nothing orders it with this stream.
      require(cudaMemcpyAsync(at.d, old.data(), old.size(), cudaMemcpyHostToDevice, at.stream),
              "cudaMemcpyAsync");
      require(cudaStreamSynchronize(at.stream), "cudaStreamSynchronize");
    }
    return best;
  }

  std::size_t fastest(Plan& plan, const Addresses& at) {
    constexpr float none = std::numeric_limits<float>::infinity();
    if (!std::exchange(warm_, true)) warm(plan, at);
    std::vector<float> least(plan.algorithms.size(), none);
    const auto best = [&] { return std::ranges::min_element(least); };
    for (int round = 0; round < kRounds; ++round)
      for (std::size_t i = 0; i < least.size(); ++i)
        if (round < kTrials || least[i] <= kInReach * *best())
          least[i] = std::min(least[i], milliseconds(plan, at, plan.algorithms[i]));
    if (*best() < none) plan.seconds = *best() * 1e-3;
    return static_cast<std::size_t>(best() - least.begin());
  }

  void warm(const Plan& plan, const Addresses& at) {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point began = Clock::now();
    while (std::chrono::duration<double>(Clock::now() - began).count() < kWarmSeconds)
      (void)milliseconds(plan, at, plan.algorithms.front());
  }

  // Of one GEMM, so many at once that the host is ahead of the GPU; inf where the algorithm
  // refuses.
  float milliseconds(const Plan& plan, const Addresses& at, const cublasLtMatmulAlgo_t& algorithm) {
    constexpr float none = std::numeric_limits<float>::infinity();
    const Event begin = event(), end = event();
    require(cudaEventRecord(begin.get(), at.stream), "cudaEventRecord");
    for (int i = 0; i < kAtOnce; ++i)
      if (queue(library_.get(), plan, at, algorithm) != CUBLAS_STATUS_SUCCESS) return none;
    require(cudaEventRecord(end.get(), at.stream), "cudaEventRecord");
    require(cudaEventSynchronize(end.get()), "cudaEventSynchronize");
    float took = none;
    require(cudaEventElapsedTime(&took, begin.get(), end.get()), "cudaEventElapsedTime");
    return took / kAtOnce;
  }

  Library library_;
  AlgorithmCache cache_;
  std::string where_;  // versions and GPU, of keys on disk
  bool warm_ = false;  // the GPU's clocks
  std::map<LibraryCall, Plan> plans_;
  std::map<std::string, std::int64_t> refusals_;
};

}  // namespace

std::unique_ptr<Gemms> cublaslt_gemms(const GemmOptions& options) {
  return std::make_unique<CublasLt>(options);
}

}  // namespace plimsoll::kernels::cuda
