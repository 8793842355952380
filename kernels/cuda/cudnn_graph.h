// cuDNN's graphs: descriptors that end themselves, operations, and plans. Graph and plan need no
// GPU: a description of one is enough.
#pragma once

#include <cudnn.h>

#include <array>
#include <string>
#include <vector>

#include "models/base/error.h"

namespace plimsoll::kernels::cuda {

void require(cudnnStatus_t status, const char* what);

class Descriptor {
 public:
  explicit Descriptor(cudnnBackendDescriptorType_t type);
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept;
  Descriptor& operator=(Descriptor&&) = delete;

  cudnnBackendDescriptor_t get() const { return descriptor_; }
  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::int64_t count,
           const void* values) const;
  template <class Enum>
  void set_one(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
               const Enum& value) const {
    set(name, type, 1, &value);
  }
  void set_one(cudnnBackendAttributeName_t name, const Descriptor& value) const;
  cudnnStatus_t try_finalize() const { return cudnnBackendFinalize(descriptor_); }
  void finalize(const char* what) const { require(try_finalize(), what); }

 private:
  cudnnBackendDescriptor_t descriptor_ = nullptr;
};

// A GPU, present (its index) or described in cuDNN's JSON.
Descriptor device_properties(int device);
Descriptor device_properties(const std::string& json);

using Four = std::array<std::int64_t, 4>;

// Tensors and operations in the order of their adding; what `tensor` returns names a tensor.
class Graph {
 public:
  enum class Kind { operand, virtual_, by_value };  // virtual: never in memory

  int tensor(std::int64_t uid, cudnnDataType_t dtype, const Four& lengths, const Four& strides,
             Kind kind);
  int scalar(std::int64_t uid) {
    return tensor(uid, CUDNN_DATA_FLOAT, {1, 1, 1, 1}, {1, 1, 1, 1}, Kind::by_value);
  }
  // y = mode(x), mode(x, b), or t ? x : b. -1: no such operand.
  void pointwise(cudnnPointwiseMode_t mode, int x, int b, int y, int t = -1,
                 cudnnDataType_t compute = CUDNN_DATA_FLOAT);
  void index_along(std::int64_t axis, int x, int y);
  void multiply(int a, int b, int c);
  void reduce(cudnnReduceTensorOp_t op, int x, int y);
  void reshape(int x, int y);

 private:
  friend class GraphPlan;
  void finish_operation(Descriptor operation);
  void finish_pointwise(Descriptor mode, int x, int b, int y, int t);

  std::vector<Descriptor> tensors_, kept_, operations_;
};

// The first plans of cuDNN's heuristic that can be made, best first, at most `most`, none of which
// needs more workspace than the first. Each takes a second to make.
class GraphPlan {
 public:
  // With a handle plans are made for it, and else for the device, which may be a described one.
  GraphPlan(const Graph& graph, const Descriptor& device, std::size_t most = 1,
            cudnnHandle_t handle = nullptr);

  // Empty: there is one.
  const std::string& refusal() const { return refusal_; }
  std::int64_t workspace_bytes() const { return workspace_bytes_; }
  std::size_t candidates() const { return plans_.size(); }
  std::int64_t engine(std::size_t candidate) const { return plans_[candidate].engine; }
  // Queues the graph on the handle's stream, unless it says otherwise.
  cudnnStatus_t execute(std::size_t candidate, cudnnHandle_t handle,
                        const std::vector<std::int64_t>& uids, const std::vector<void*>& addresses,
                        void* workspace) const;

 private:
  void choose(const Descriptor& operations, cudnnBackendHeurMode_t mode, const Descriptor& device,
              cudnnHandle_t handle);

  struct Candidate {
    Descriptor plan;
    std::int64_t engine;  // cuDNN's number of it
  };
  std::size_t most_;
  std::vector<Candidate> plans_;
  std::int64_t workspace_bytes_ = 0;
  std::string refusal_;
};

}  // namespace plimsoll::kernels::cuda
