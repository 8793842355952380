#include "runtime/profile.h"

#include <algorithm>
#include <optional>

#include "kernels/attention_mask.h"

namespace plimsoll::runtime {

namespace {

using kernels::KernelTable;

struct Recording {
  const Ledger& ledger;
  std::unique_ptr<Stopwatch> watch;
  std::vector<KernelCost> costs;

  // Each call lies between two marks; what the host does between two calls is no part of either.
  template <class Call>
  void note(const char* kernel, double bytes, double flops, Call call) {
    watch->mark();
    call();
    watch->mark();
    costs.push_back({ledger.in_op() ? ledger.op_name() : std::string(), ledger.op_phase(), kernel,
                     0, bytes, flops});
  }
};

thread_local Recording* recording = nullptr;  // of the calling thread, while it measures
thread_local const KernelTable* plain = nullptr;  // its device's

template <class Call>
void noted(const char* kernel, double bytes, double flops, Call call) {
  if (recording == nullptr) return call();
  recording->note(kernel, bytes, flops, call);
}

// Bytes ------------------------------------------------------------------------------------------

template <class Other>
double bytes_of(const Other&) {
  return 0;
}
template <class Data>
double bytes_of(const kernels::BasicView<Data>& view) {
  return view ? storage(Count(view.elements()), view.dtype).real() : 0;
}
template <class Data>
double bytes_of(const kernels::BasicColumns<Data>& columns) {
  if (!columns.tensor) return 0;
  return storage(Count(columns.rows() * columns.width), columns.tensor.dtype).real();
}
double bytes_of(const kernels::OptimizerTensors& t) {
  return 2 * (bytes_of(t.weight) + bytes_of(t.master) + bytes_of(t.first_moment) +
              bytes_of(t.second_moment) + bytes_of(t.first_scales) + bytes_of(t.second_scales)) +
         bytes_of(t.gradient);
}
double bytes_of(const kernels::PackedWeight& w) {
  return bytes_of(w.codes) + bytes_of(w.scales) + bytes_of(w.scale_scales) + bytes_of(w.offset) +
         bytes_of(w.zeros);
}
double bytes_of(const kernels::Float8Matrix& m) {
  return bytes_of(m.values) + bytes_of(m.scale);
}
double bytes_of(const kernels::Routes& r) {
  return bytes_of(r.offsets) + bytes_of(r.chosen) + bytes_of(r.pairs) + bytes_of(r.places);
}
double bytes_of(const kernels::RoutedRows& rows) {
  return bytes_of(rows.view);
}
double bytes_of(std::span<const kernels::SquaredPiece> pieces) {
  double bytes = 0;
  for (const kernels::SquaredPiece& piece : pieces) bytes += bytes_of(piece.piece);
  return bytes;
}

bool adds(bool accumulate) {
  return accumulate;
}
bool adds(const kernels::LinearOptions& options) {
  return options.accumulate;
}
bool adds(const kernels::Float8Options& options) {
  return options.accumulate;
}
template <class Other>
bool adds(const Other&) {
  return false;
}

// A letter for each argument: r read, w written, u read and written, a written and, where the call
// accumulates, read, - neither (options, and scratch).
template <class... A>
double bytes_moved(const char* roles, const A&... arguments) {
  const bool accumulates = (adds(arguments) || ...);
  double bytes = 0;
  const auto add = [&](char role, double size) {
    if (role == 'r' || role == 'w') bytes += size;
    if (role == 'u' || (role == 'a' && accumulates)) bytes += 2 * size;
    if (role == 'a' && !accumulates) bytes += size;
  };
  (add(*roles++, bytes_of(arguments)), ...);
  return bytes;
}

// FLOPs ------------------------------------------------------------------------------------------

// Pairs of a query and a key that it sees, of all heads.
double pairs(const kernels::AttentionShape& s) {
  double seen = 0;
  for (std::int64_t i = 0; i < s.length; ++i)
    seen += static_cast<double>(i - kernels::first_key(s, i) + 1);
  return seen * static_cast<double>(s.sequences * s.heads);
}
double gemm(std::int64_t m, std::int64_t n, std::int64_t k) {
  return 2 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
}

// GEMMs of a query's and a key's row that a kernel of attention makes for each pair.
constexpr std::pair<std::string_view, int> kAttentionGemms[] = {
    {"flash_forward", 2},
    {"flash_backward", 5},
    {"attention_scores", 1},
    {"attention_values", 1},
    {"attention_values_backward", 1},
    {"attention_probabilities_backward", 1},
    {"attention_scores_backward", 2}};

template <class... Rest>
double flops_of(std::string_view name, const kernels::AttentionShape& s, const Rest&...) {
  const auto* found =
      std::ranges::find(kAttentionGemms, name, [](const auto& entry) { return entry.first; });
  return found->second * 2 * pairs(s) * static_cast<double>(s.head_dim);
}
// linear_forward: x [T, in], y [T, out].
double flops_of(std::string_view, const kernels::ConstTensorView& x,
                const kernels::ConstTensorView&, const kernels::ConstTensorView&,
                const kernels::LinearOptions&, const kernels::Columns& y,
                const kernels::TensorView&) {
  return gemm(y.rows(), y.width, x.shape[1]);
}
// linear_backward_input: d_y [T, out], d_x [T, in]; linear_backward_weight: x [T, in] beside d_y.
double flops_of(std::string_view name, const kernels::ConstColumns& d_y,
                const kernels::ConstTensorView& other, const kernels::LinearOptions&,
                const kernels::TensorView& result, const kernels::TensorView&) {
  const bool of_weight = name == "linear_backward_weight";
  return gemm(d_y.rows(), d_y.width, of_weight ? other.shape[1] : result.shape[1]);
}
// Of each row with its expert's matrix: experts_forward, experts_backward_input.
double flops_of(std::string_view, const kernels::Routes& routes, const kernels::RoutedRows& x,
                const kernels::ConstTensorView&, const kernels::TensorView& y,
                const kernels::TensorView&) {
  return gemm(routes.rows(), x.view.shape[1], y.shape[1]);
}
double flops_of(std::string_view, const kernels::Routes& routes, const kernels::RoutedRows& d_y,
                const kernels::RoutedRows& x, const kernels::TensorView&,
                const kernels::TensorView&) {
  return gemm(routes.rows(), d_y.view.shape[1], x.view.shape[1]);
}
// float8_gemm: a [M, K], b [N, K].
double flops_of(std::string_view, const kernels::Float8Matrix& a, const kernels::Float8Matrix& b,
                const kernels::ConstTensorView&, const kernels::Float8Options&,
                const kernels::TensorView&, const kernels::TensorView&) {
  return gemm(a.values.shape[0], b.values.shape[0], a.values.shape[1]);
}
template <class... A>
double flops_of(std::string_view, const A&...) {
  return 0;
}

// The table -------------------------------------------------------------------------------------

template <std::size_t kSize>
struct Text {
  char text[kSize]{};
  consteval Text(const char (&from)[kSize]) { std::copy_n(from, kSize, text); }  // NOLINT
};

template <auto kMember, Text kName, Text kRoles, class Function>
struct Noted;
template <auto kMember, Text kName, Text kRoles, class... A>
struct Noted<kMember, kName, kRoles, void (*)(A...)> {
  static_assert(sizeof(kRoles.text) == sizeof...(A) + 1, "a letter for each argument");
  static void call(A... arguments) {
    if (recording == nullptr) return (plain->*kMember)(arguments...);
    recording->note(kName.text, bytes_moved(kRoles.text, arguments...),
                    flops_of(kName.text, arguments...), [&] { (plain->*kMember)(arguments...); });
  }
};

template <auto kMember, Text kName, Text kRoles>
void set(KernelTable& table) {
  using Function = std::remove_reference_t<decltype(table.*kMember)>;
  table.*kMember = Noted<kMember, kName, kRoles, Function>::call;
}

const KernelTable& noted_kernels() {
  static const KernelTable table = [] {
    using K = KernelTable;
    K t{};
    set<&K::embedding_forward, "embedding_forward", "r----u">(t);
    set<&K::embedding_backward, "embedding_backward", "r--u---">(t);
    set<&K::layer_norm_forward, "layer_norm_forward", "rrr-ww">(t);
    set<&K::layer_norm_again, "layer_norm_again", "rrrrw">(t);
    set<&K::layer_norm_backward, "layer_norm_backward", "rrrr-auu-">(t);
    set<&K::rms_norm_forward, "rms_norm_forward", "rr--ww">(t);
    set<&K::rms_norm_again, "rms_norm_again", "rrr-w">(t);
    set<&K::rms_norm_backward, "rms_norm_backward", "rrr-r-au-">(t);
    set<&K::linear_forward, "linear_forward", "rrr-a-">(t);
    set<&K::linear_backward_input, "linear_backward_input", "rr-a-">(t);
    set<&K::linear_backward_weight, "linear_backward_weight", "rr-a-">(t);
    set<&K::bias_add, "bias_add", "ru">(t);
    set<&K::bias_backward, "bias_backward", "ru-">(t);
    set<&K::rotary_table, "rotary_table", "-w">(t);
    set<&K::rotary, "rotary", "r-u">(t);
    set<&K::activation_forward, "activation_forward", "-rw">(t);
    set<&K::activation_backward, "activation_backward", "-uu">(t);
    set<&K::gated_forward, "gated_forward", "-rrw">(t);
    set<&K::gated_backward, "gated_backward", "-uuu">(t);
    set<&K::residual_add, "residual_add", "r-u">(t);
    set<&K::residual_backward, "residual_backward", "-uu">(t);
    set<&K::dropout, "dropout", "r--a">(t);
    set<&K::flash_forward, "flash_forward", "--rrrww">(t);
    set<&K::flash_backward, "flash_backward", "--rrrrrrwww-">(t);
    set<&K::attention_scores, "attention_scores", "-rrw">(t);
    set<&K::softmax_forward, "softmax_forward", "u">(t);
    set<&K::attention_values, "attention_values", "-rrw">(t);
    set<&K::attention_values_backward, "attention_values_backward", "-rrw">(t);
    set<&K::attention_probabilities_backward, "attention_probabilities_backward", "-rrw">(t);
    set<&K::softmax_backward, "softmax_backward", "r-u">(t);
    set<&K::attention_scores_backward, "attention_scores_backward", "-rrrww">(t);
    set<&K::route, "route", "r-ww">(t);
    set<&K::route_backward, "route_backward", "r--rrw">(t);
    set<&K::experts_forward, "experts_forward", "-rrw-">(t);
    set<&K::experts_backward_input, "experts_backward_input", "-rrw-">(t);
    set<&K::experts_backward_weight, "experts_backward_weight", "-rru-">(t);
    set<&K::experts_sum, "experts_sum", "-r-a">(t);
    set<&K::scored_gate_forward, "scored_gate_forward", "--rrw">(t);
    set<&K::scored_gate_backward, "scored_gate_backward", "--uruw">(t);
    set<&K::cross_entropy, "cross_entropy", "r----aww">(t);
    set<&K::cross_entropy_backward, "cross_entropy_backward", "r---ru">(t);
    set<&K::soft_cap, "soft_cap", "-u">(t);
    set<&K::loss_sum, "loss_sum", "r-u">(t);
    set<&K::adamw, "adamw", "r-">(t);
    set<&K::sgd, "sgd", "r-">(t);
    set<&K::lion, "lion", "r-">(t);
    set<&K::gram, "gram", "rw">(t);
    set<&K::eigenvectors, "eigenvectors", "u--">(t);
    set<&K::basis, "basis", "rw">(t);
    set<&K::sum_of_squares, "sum_of_squares", "r-">(t);
    set<&K::total, "total", "r-w">(t);
    set<&K::clip, "clip", "r--www">(t);
    set<&K::cast, "cast", "rw">(t);
    set<&K::add, "add", "ru">(t);
    set<&K::scale, "scale", "-u">(t);
    set<&K::fill, "fill", "-w">(t);
    set<&K::dequantize, "dequantize", "rw">(t);
    set<&K::float8_scale, "float8_scale", "r-w-">(t);
    set<&K::to_float8, "to_float8", "rrww">(t);
    set<&K::float8_gemm, "float8_gemm", "rrr-a-">(t);
    return t;
  }();
  return table;
}

}  // namespace

class Profile::Profiled final : public Device {
 public:
  explicit Profiled(Device& device) : device_(device) {}

  models::Device kind() const override { return device_.kind(); }
  std::string name() const override { return device_.name(); }
  const KernelTable& kernels() const override {
    static const KernelTable without_eigenvectors = [] {
      KernelTable table = noted_kernels();
      table.eigenvectors = nullptr;
      return table;
    }();
    plain = &device_.kernels();
    return plain->eigenvectors == nullptr ? without_eigenvectors : noted_kernels();
  }
  std::unique_ptr<Region> reserve(Bytes most) override { return device_.reserve(most); }
  Device& host(bool pinned) override { return device_.host(pinned); }
  void copy(void* to, const void* from, Bytes bytes) override {
    noted("copy", 2 * bytes.real(), 0, [&] { device_.copy(to, from, bytes); });
  }
  void copy_in(void* to, const void* host, Bytes bytes) override {
    noted("copy_in", bytes.real(), 0, [&] { device_.copy_in(to, host, bytes); });
  }
  void copy_out(void* host, const void* from, Bytes bytes) override {
    device_.copy_out(host, from, bytes);
  }
  // Beside the kernels: no part of their times.
  std::unique_ptr<Copying> start_copy_in(void* to, const void* host, Bytes bytes) override {
    return device_.start_copy_in(to, host, bytes);
  }
  std::unique_ptr<Copying> start_copy_out(void* host, const void* from, Bytes bytes) override {
    return device_.start_copy_out(host, from, bytes);
  }
  void fill_bytes(void* to, unsigned char value, Bytes bytes) override {
    noted("fill_bytes", bytes.real(), 0, [&] { device_.fill_bytes(to, value, bytes); });
  }
  void synchronize() override { device_.synchronize(); }
  std::unique_ptr<Stopwatch> stopwatch() override { return device_.stopwatch(); }
  LibraryUse libraries() override { return device_.libraries(); }

  void begin(const Ledger& ledger) {
    recording_.emplace(Recording{ledger, device_.stopwatch(), {}});
    recording = &*recording_;
  }
  std::vector<KernelCost> end() {
    recording = nullptr;
    std::vector<KernelCost> costs = std::move(recording_->costs);
    const std::vector<double> laps = recording_->watch->laps();
    for (std::size_t i = 0; i < costs.size(); ++i) costs[i].seconds = laps[2 * i];
    recording_.reset();
    return costs;
  }

 private:
  Device& device_;
  std::optional<Recording> recording_;
};

Profile::Profile(Device& device) : device_(std::make_unique<Profiled>(device)) {}
Profile::~Profile() = default;
Device& Profile::device() {
  return *device_;
}
void Profile::begin(const Ledger& ledger) {
  device_->begin(ledger);
}
std::vector<KernelCost> Profile::end() {
  return device_->end();
}

}  // namespace plimsoll::runtime
