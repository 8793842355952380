#include "reports/snapshot/snapshot_stack.h"

#include <fmt/format.h>

#include <array>

#include "reports/text.h"

namespace plimsoll::reports {

namespace {
constexpr std::size_t kMostName = 60;

bool is_python(const SnapshotFrame& frame) {
  return frame.file.ends_with(".py") || frame.file.starts_with("<");  // <stdin>, <ipython-…>
}

// Python's own, and what was installed: sys.path's folders end so on every system.
bool is_library(const SnapshotFrame& frame) {
  constexpr std::array kFolders{"site-packages/", "dist-packages/", "lib/python3", "<frozen "};
  for (const char* folder : kFolders)
    if (frame.file.find(folder) != std::string_view::npos) return true;
  return false;
}

std::string_view last_part(std::string_view path) {
  return path.substr(path.rfind('/') + 1);  // npos + 1 is 0
}

std::string line_of(const SnapshotFrame& frame) {
  return fmt::format("{}:{} {}", printable(last_part(frame.file).substr(0, kMostName)), frame.line,
                     printable(frame.name.substr(0, kMostName)));
}

// "clone" of "at::_ops::clone::call(at::Tensor const&, …)".
std::string_view operator_of(std::string_view name) {
  constexpr std::string_view kOps = "at::_ops::";
  if (!name.starts_with(kOps)) return {};
  name.remove_prefix(kOps.size());
  return name.substr(0, name.find(':'));
}

// "MmBackward0" of "torch::autograd::generated::MmBackward0::apply(…)".
std::string_view node_of(std::string_view name) {
  const std::size_t end = name.find("::apply(");
  if (end == std::string_view::npos || !name.starts_with("torch::autograd::")) return {};
  name = name.substr(0, end);
  name = name.substr(name.rfind(':') + 1);
  return name.find("Backward") == std::string_view::npos ? std::string_view() : name;
}

SnapshotStack::Phase phase_of(const SnapshotFrame& frame) {
  using Phase = SnapshotStack::Phase;
  if (frame.name.find("autograd::Engine::thread_") != std::string_view::npos ||
      !node_of(frame.name).empty())
    return Phase::backward;
  if (!is_python(frame)) return Phase::unknown;
  if (frame.file.find("torch/optim/") != std::string_view::npos) return Phase::optimizer;
  if (frame.name == "_engine_run_backward") return Phase::backward;
  return Phase::unknown;
}
}  // namespace

SnapshotStack read_stack(std::span<const SnapshotFrame> frames) {
  SnapshotStack out;
  const SnapshotFrame *own = nullptr, *python = nullptr;
  std::string_view op, node;
  bool in_forward = false;
  for (const SnapshotFrame& frame : frames) {
    if (op.empty()) op = operator_of(frame.name);
    if (node.empty()) node = node_of(frame.name);
    if (out.phase == SnapshotStack::Phase::unknown) out.phase = phase_of(frame);
    if (!is_python(frame)) continue;
    in_forward = in_forward || frame.name == "forward";
    if (!python) python = &frame;
    if (!own && !is_library(frame)) own = &frame;
  }
  if (out.phase == SnapshotStack::Phase::unknown && in_forward)
    out.phase = SnapshotStack::Phase::forward;
  out.own = own && own == python;
  if (const SnapshotFrame* shown = own ? own : python) out.where = line_of(*shown);
  const std::string what = printable((node.empty() ? op : node).substr(0, kMostName));
  if (!what.empty()) out.where += (out.where.empty() ? "" : ", ") + what;
  return out;
}

}  // namespace plimsoll::reports
