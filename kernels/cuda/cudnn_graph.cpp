#include "kernels/cuda/cudnn_graph.h"

#include <utility>

namespace plimsoll::kernels::cuda {

void require(cudnnStatus_t status, const char* what) {
  check(status == CUDNN_STATUS_SUCCESS, ErrorKind::device,
        [&] { return std::string("cuDNN: ") + what + ": " + cudnnGetErrorString(status); });
}

Descriptor::Descriptor(cudnnBackendDescriptorType_t type) {
  require(cudnnBackendCreateDescriptor(type, &descriptor_), "a descriptor");
}
Descriptor::~Descriptor() {
  if (descriptor_ != nullptr) cudnnBackendDestroyDescriptor(descriptor_);
}
Descriptor::Descriptor(Descriptor&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, nullptr)) {}

void Descriptor::set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                     std::int64_t count, const void* values) const {
  require(cudnnBackendSetAttribute(descriptor_, name, type, count, values), "an attribute");
}
void Descriptor::set_one(cudnnBackendAttributeName_t name, const Descriptor& value) const {
  const cudnnBackendDescriptor_t other = value.get();
  set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &other);
}

Descriptor device_properties(int device) {
  Descriptor d(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  d.set_one(CUDNN_ATTR_DEVICEPROP_DEVICE_ID, CUDNN_TYPE_INT32, std::int32_t{device});
  d.finalize("the properties of the device");
  return d;
}
Descriptor device_properties(const std::string& json) {
  Descriptor d(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  d.set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
        static_cast<std::int64_t>(json.size()), json.data());
  d.finalize("the description of a device");
  return d;
}

// Graph ------------------------------------------------------------------------------------------

int Graph::tensor(std::int64_t uid, cudnnDataType_t dtype, const Four& lengths, const Four& strides,
                  Kind kind) {
  Descriptor d(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  d.set_one(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, dtype);
  d.set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, lengths.data());
  d.set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides.data());
  d.set_one(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, uid);
  d.set_one(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, std::int64_t{16});
  if (kind == Kind::virtual_) d.set_one(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, true);
  if (kind == Kind::by_value) d.set_one(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, true);
  d.finalize("a tensor");
  tensors_.push_back(std::move(d));
  return static_cast<int>(tensors_.size()) - 1;
}

void Graph::finish_operation(Descriptor operation) {
  operation.finalize("an operation");
  operations_.push_back(std::move(operation));
}

void Graph::finish_pointwise(Descriptor mode, int x, int b, int y, int t) {
  mode.finalize("an elementwise operation");
  const auto of = [&](int which) -> const Descriptor& {
    return tensors_[static_cast<std::size_t>(which)];
  };
  Descriptor operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  operation.set_one(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, mode);
  operation.set_one(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, of(x));
  operation.set_one(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, of(y));
  if (b >= 0) operation.set_one(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, of(b));
  if (t >= 0) operation.set_one(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, of(t));
  operation.set_one(CUDNN_ATTR_OPERATION_POINTWISE_ALPHA1, CUDNN_TYPE_FLOAT, 1.0f);
  operation.set_one(CUDNN_ATTR_OPERATION_POINTWISE_ALPHA2, CUDNN_TYPE_FLOAT, 1.0f);
  kept_.push_back(std::move(mode));
  finish_operation(std::move(operation));
}

void Graph::pointwise(cudnnPointwiseMode_t mode, int x, int b, int y, int t,
                      cudnnDataType_t compute) {
  Descriptor d(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  d.set_one(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode);
  d.set_one(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, compute);
  finish_pointwise(std::move(d), x, b, y, t);
}

void Graph::index_along(std::int64_t axis, int x, int y) {
  Descriptor d(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  d.set_one(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, CUDNN_POINTWISE_GEN_INDEX);
  d.set_one(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  d.set_one(CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, axis);
  finish_pointwise(std::move(d), x, -1, y, -1);
}

void Graph::multiply(int a, int b, int c) {
  Descriptor d(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  d.set_one(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  d.finalize("a GEMM");
  Descriptor operation(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  operation.set_one(CUDNN_ATTR_OPERATION_MATMUL_ADESC, tensors_[static_cast<std::size_t>(a)]);
  operation.set_one(CUDNN_ATTR_OPERATION_MATMUL_BDESC, tensors_[static_cast<std::size_t>(b)]);
  operation.set_one(CUDNN_ATTR_OPERATION_MATMUL_CDESC, tensors_[static_cast<std::size_t>(c)]);
  operation.set_one(CUDNN_ATTR_OPERATION_MATMUL_DESC, d);
  kept_.push_back(std::move(d));
  finish_operation(std::move(operation));
}

void Graph::reduce(cudnnReduceTensorOp_t op, int x, int y) {
  Descriptor d(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  d.set_one(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  d.set_one(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, op);
  d.finalize("a reduction");
  Descriptor operation(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  operation.set_one(CUDNN_ATTR_OPERATION_REDUCTION_DESC, d);
  operation.set_one(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, tensors_[static_cast<std::size_t>(x)]);
  operation.set_one(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, tensors_[static_cast<std::size_t>(y)]);
  kept_.push_back(std::move(d));
  finish_operation(std::move(operation));
}

void Graph::reshape(int x, int y) {
  Descriptor operation(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  operation.set_one(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, tensors_[static_cast<std::size_t>(x)]);
  operation.set_one(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, tensors_[static_cast<std::size_t>(y)]);
  finish_operation(std::move(operation));
}

// Plan -------------------------------------------------------------------------------------------

namespace {

std::int64_t engine_of(const Descriptor& configuration) {
  const Descriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t to = engine.get();
  std::int64_t count = 0, number = -1;
  if (cudnnBackendGetAttribute(configuration.get(), CUDNN_ATTR_ENGINECFG_ENGINE,
                               CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count,
                               &to) != CUDNN_STATUS_SUCCESS)
    return -1;
  cudnnBackendGetAttribute(engine.get(), CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1,
                           &count, &number);
  return number;
}

}  // namespace

GraphPlan::GraphPlan(const Graph& graph, const Descriptor& device, std::size_t most,
                     cudnnHandle_t handle)
    : most_(most) {
  std::vector<cudnnBackendDescriptor_t> all;
  for (const Descriptor& operation : graph.operations_) all.push_back(operation.get());
  Descriptor operations(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  operations.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                 static_cast<std::int64_t>(all.size()), all.data());
  if (handle != nullptr)
    operations.set_one(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, handle);
  if (const cudnnStatus_t status = operations.try_finalize(); status != CUDNN_STATUS_SUCCESS) {
    refusal_ = std::string("cuDNN takes no such graph: ") + cudnnGetErrorString(status);
    return;
  }
  choose(operations, CUDNN_HEUR_MODE_A, device, handle);
  if (plans_.empty()) choose(operations, CUDNN_HEUR_MODE_FALLBACK, device, handle);
  if (plans_.empty()) refusal_ = "cuDNN has no plan for the graph";
}

void GraphPlan::choose(const Descriptor& operations, cudnnBackendHeurMode_t mode,
                       const Descriptor& device, cudnnHandle_t handle) {
  Descriptor heuristic(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristic.set_one(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, operations);
  heuristic.set_one(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, mode);
  if (handle == nullptr) heuristic.set_one(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, device);
  if (heuristic.try_finalize() != CUDNN_STATUS_SUCCESS) return;
  std::vector<Descriptor> configurations;
  std::vector<cudnnBackendDescriptor_t> found;
  for (int i = 0; i < 8; ++i) {
    configurations.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    found.push_back(configurations.back().get());
  }
  std::int64_t count = 0;
  if (cudnnBackendGetAttribute(heuristic.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                               CUDNN_TYPE_BACKEND_DESCRIPTOR, 8, &count,
                               found.data()) != CUDNN_STATUS_SUCCESS)
    return;
  for (std::size_t i = 0; i < static_cast<std::size_t>(count) && i < found.size(); ++i) {
    if (plans_.size() == most_) return;
    Descriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    plan.set_one(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configurations[i]);
    if (handle == nullptr)
      plan.set_one(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, device);
    else
      plan.set_one(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, handle);
    if (plan.try_finalize() != CUDNN_STATUS_SUCCESS) continue;
    std::int64_t ones = 0, bytes = 0;
    require(cudnnBackendGetAttribute(plan.get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                     CUDNN_TYPE_INT64, 1, &ones, &bytes),
            "the workspace of a plan");
    if (plans_.empty()) workspace_bytes_ = bytes;
    if (bytes <= workspace_bytes_)
      plans_.push_back({std::move(plan), engine_of(configurations[i])});
  }
}

cudnnStatus_t GraphPlan::execute(std::size_t candidate, cudnnHandle_t handle,
                                 const std::vector<std::int64_t>& uids,
                                 const std::vector<void*>& addresses, void* workspace) const {
  const auto count = static_cast<std::int64_t>(uids.size());
  Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, uids.data());
  pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, addresses.data());
  pack.set_one(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace);
  pack.finalize("the addresses of a graph");
  return cudnnBackendExecute(handle, plans_[candidate].plan.get(), pack.get());
}

}  // namespace plimsoll::kernels::cuda
