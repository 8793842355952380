// What a run begins with: weights of the base and of adapters, by name.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/io/weight_source.h"
#include "runtime/model.h"
#include "tools/run/job.h"
#include "tools/run/run_options.h"

namespace plimsoll::tools {

class Weights {
 public:
  // Error{bad_input}, Error{unsupported}: files that do not hold what the job trains; several
  // adapters of one name, or with options that are of one training.
  Weights(const Job& job, const RunOptions& options);

  // Of the base, and of adapter number `adapter`.
  void read(const runtime::ModelParameter& parameter, std::int64_t first, std::span<float> to,
            std::size_t adapter = 0) const;
  // Bytes of a packed weight, where the base comes packed; else none.
  std::vector<std::byte> packed(const runtime::ModelParameter& parameter) const;
  bool come_packed() const { return packed_; }
  std::string origin() const { return base_->origin(); }

  // Adapters that are trained one after another on the one base; none where there is one, or none.
  std::size_t tasks() const { return names_.size(); }
  const std::string& name(std::size_t task) const { return names_[task]; }  // of its folder

 private:
  std::unique_ptr<runtime::io::WeightSource> base_;
  std::vector<std::unique_ptr<runtime::io::WeightSource>> adapters_;
  std::vector<std::string> names_;
  bool packed_ = false;
};

}  // namespace plimsoll::tools
