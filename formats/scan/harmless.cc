// SPDX-License-Identifier: Apache-2.0
#include "formats/scan/harmless.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "containers/torch/container.h"

namespace ckpt::scan {
namespace {

using pickle::Use;

// What may be done with a global; naming it is then always allowed. Kept as a
// value, it may be called by whatever holds it, with anything in the pickle: by
// obj.keys() if keys is in obj's dict. So only what the pickle may call may be
// kept.
constexpr uint16_t kNamed = pickle::kImport | pickle::kAttribute;
constexpr uint16_t kValue = kNamed | pickle::kKept;
// cls.__new__ and a __setstate__ that only keeps the state: no __init__ runs.
constexpr uint16_t kInstance = kNamed | pickle::kNewObj | pickle::kBuild;
// When called, an enum looks up a value and a plain class keeps its arguments.
constexpr uint16_t kCalled = kValue | pickle::kReduce;
// A torch.nn module: its __init__ allocates what it is told to.
constexpr uint16_t kModule = kInstance | pickle::kKept;
constexpr uint16_t kAny =
    kInstance | kCalled | pickle::kInst | pickle::kArgument;

// Names in one module, separated by blanks. Sorted by module.
struct Row {
  std::string_view module;
  uint16_t uses;
  std::string_view names;
};

constexpr Row kRows[] = {
    // Python's own: values, containers, and what they reduce to. getattr is
    // harmless if the pickle says what of (lib/pickle/trace.h).
    {"_io", kInstance | kCalled, "BytesIO StringIO"},
    {"argparse", kAny, "Namespace"},
    {"builtins", kCalled | pickle::kArgument | pickle::kNewObj,
     "Ellipsis NotImplemented bool bytearray bytes complex dict float "
     "frozenset int list object range set slice str tuple"},
    {"builtins", kNamed, "getattr"},
    {"builtins", kValue, "len max min sum"},
    {"collections", kAny, "Counter OrderedDict defaultdict deque"},
    // cls.__new__ with classes that are listed themselves.
    {"copyreg", kNamed | pickle::kReduce,
     "__newobj__ __newobj_ex__ _reconstructor"},
    {"datetime", kAny, "date datetime time timedelta timezone"},
    {"decimal", kCalled, "Decimal"},
    {"fractions", kCalled, "Fraction"},
    // Keeps a function for a later caller: the function is then a value.
    {"functools", kAny, "partial"},
    {"pathlib", kCalled,
     "Path PosixPath PurePath PurePosixPath PureWindowsPath WindowsPath"},
    {"pathlib._local", kCalled,
     "Path PosixPath PurePath PurePosixPath PureWindowsPath WindowsPath"},
    {"signal", kCalled, "Signals"},
    {"types", kInstance | kCalled, "SimpleNamespace"},
    {"typing", kValue,
     "Any Callable Dict FrozenSet Iterable List Mapping Optional Sequence Set "
     "Tuple Type Union"},
    {"uuid", kInstance, "UUID"},
    // numpy's arrays, scalars and generator states. ndarray takes bytes for
    // what it is told that they are, pointers too: pickles of numpy only name
    // it. What dtype may be made of, lib/pickle/trace.h says.
    {"numpy", kAny,
     "bool_ float16 float32 float64 int16 int32 int64 int8 uint16 uint32 "
     "uint64 uint8"},
    {"numpy", kNamed | pickle::kReduce | pickle::kBuild, "dtype"},
    {"numpy", kValue, "ndarray"},
    {"numpy._core.multiarray", kAny, "_reconstruct scalar"},
    {"numpy._core.numeric", kAny, "_frombuffer"},
    {"numpy.core.multiarray", kAny, "_reconstruct scalar"},
    {"numpy.core.numeric", kAny, "_frombuffer"},
    {"numpy.dtypes", kAny,
     "BoolDType Float16DType Float32DType Float64DType Int16DType Int32DType "
     "Int64DType Int8DType UInt16DType UInt32DType UInt64DType UInt8DType"},
    // What they make keeps the state that BUILD gives it, as numbers.
    {"numpy.random._pickle", kNamed | pickle::kReduce | pickle::kBuild,
     "__bit_generator_ctor __generator_ctor __randomstate_ctor"},
    {"numpy.random._mt19937", kAny, "MT19937"},
    {"numpy.random._pcg64", kAny, "PCG64 PCG64DXSM"},
    {"numpy.random._philox", kAny, "Philox"},
    {"numpy.random._sfc64", kAny, "SFC64"},
    {"numpy.random.bit_generator", kCalled | pickle::kBuild,
     "SeedSequence __pyx_unpickle_SeedSequence"},
    // torch: indexes of distributed checkpoints, shards, layouts, and the
    // modules of torch.nn, whose __setstate__ fills __dict__.
    {"torch", kValue, "strided sparse_coo contiguous_format preserve_format"},
    {"torch._C._nn", kValue, "gelu silu"},
    {"torch.distributed._shard.metadata", kInstance, "ShardMetadata"},
    // Its class is also among the arguments that it is made from.
    {"torch.distributed._shard.sharded_tensor.api", kInstance | pickle::kKept,
     "ShardedTensor"},
    {"torch.distributed._shard.sharded_tensor.api", kInstance,
     "ShardedTensor.ProcessGroupState"},
    {"torch.distributed._shard.sharded_tensor.metadata", kInstance | kCalled,
     "MEM_FORMAT_ENCODING ShardedTensorMetadata TensorProperties"},
    {"torch.distributed._shard.sharded_tensor.shard", kInstance, "Shard"},
    {"torch.distributed._shard.sharding_spec.chunk_sharding_spec", kInstance,
     "ChunkShardingSpec"},
    {"torch.distributed.checkpoint.filesystem", kInstance, "_StorageInfo"},
    {"torch.distributed.checkpoint.metadata", kInstance | kCalled,
     "BytesStorageMetadata ChunkStorageMetadata Metadata MetadataIndex "
     "StorageMeta TensorProperties TensorStorageMetadata "
     "_MEM_FORMAT_ENCODING"},
    {"torch.distributed.checkpoint.planner", kInstance | kCalled,
     "BytesIOWriteData LoadPlan ReadItem SavePlan TensorWriteData WriteItem "
     "WriteItemType"},
    {"torch.distributed.remote_device", kInstance, "_remote_device"},
    {"torch.distributed.fsdp.api", kInstance | kCalled,
     "ShardingStrategy StateDictType"},
    {"torch.jit._pickle", kCalled,
     "build_boollist build_doublelist build_intlist build_tensorlist"},
    {"torch.nn.functional", kValue,
     "elu gelu leaky_relu mish relu sigmoid silu softmax softplus tanh"},
    {"torch.nn.modules.activation", kModule,
     "ELU GELU LeakyReLU LogSoftmax Mish MultiheadAttention PReLU ReLU ReLU6 "
     "SELU SiLU Sigmoid Softmax Softplus Tanh"},
    {"torch.nn.modules.batchnorm", kModule,
     "BatchNorm1d BatchNorm2d BatchNorm3d SyncBatchNorm"},
    {"torch.nn.modules.container", kModule,
     "ModuleDict ModuleList ParameterDict ParameterList Sequential"},
    {"torch.nn.modules.conv", kModule,
     "Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d"},
    {"torch.nn.modules.dropout", kModule,
     "AlphaDropout Dropout Dropout1d Dropout2d Dropout3d"},
    {"torch.nn.modules.flatten", kModule, "Flatten Unflatten"},
    {"torch.nn.modules.linear", kModule,
     "Bilinear Identity Linear NonDynamicallyQuantizableLinear"},
    {"torch.nn.modules.loss", kModule,
     "BCEWithLogitsLoss CrossEntropyLoss L1Loss MSELoss NLLLoss"},
    {"torch.nn.modules.normalization", kModule,
     "GroupNorm LayerNorm LocalResponseNorm RMSNorm"},
    {"torch.nn.modules.pooling", kModule,
     "AdaptiveAvgPool1d AdaptiveAvgPool2d AvgPool1d AvgPool2d MaxPool1d "
     "MaxPool2d"},
    {"torch.nn.modules.rnn", kModule, "GRU GRUCell LSTM LSTMCell RNN"},
    {"torch.nn.modules.sparse", kModule, "Embedding EmbeddingBag"},
    {"torch.nn.modules.transformer", kModule,
     "Transformer TransformerDecoder TransformerDecoderLayer "
     "TransformerEncoder TransformerEncoderLayer"},
    // _load_from_bytes is as harmless as its bytes, which are scanned, too.
    {"torch.storage", kNamed | pickle::kBuild, "_load_from_bytes"},
    // A str: Composer keeps torch.__version__ in its files.
    {"torch.torch_version", kNamed | pickle::kNewObj, "TorchVersion"},
    // Trainers: enums, and dataclasses of options, which are made without
    // __init__ (TrainingArguments' would set up devices).
    {"accelerate.state", kInstance, "AcceleratorState PartialState"},
    {"accelerate.utils.dataclasses", kInstance | kCalled,
     "DataLoaderConfiguration DeepSpeedPlugin DistributedType DynamoBackend "
     "FullyShardedDataParallelPlugin GradientAccumulationPlugin "
     "PrecisionType ProjectConfiguration TorchDynamoPlugin"},
    {"deepspeed.runtime.fp16.loss_scaler", kInstance,
     "DynamicLossScaler LossScaler"},
    {"deepspeed.runtime.zero.config", kInstance | kCalled,
     "DeepSpeedZeroConfig ZeroStageEnum"},
    {"deepspeed.utils.tensor_fragment", kInstance,
     "fragment_address tensor_fragment"},
    {"lightning.fabric.utilities.data", kInstance, "AttributeDict"},
    {"lightning_fabric.utilities.data", kInstance, "AttributeDict"},
    {"pytorch_lightning.utilities.parsing", kInstance, "AttributeDict"},
    {"megatron.core.dist_checkpointing.mapping", kInstance,
     "ShardedObject ShardedTensor"},
    {"megatron.core.dist_checkpointing.tensor_aware_state_dict", kInstance,
     "MCoreTensorAwareStateDict"},
    {"megatron.core.dist_checkpointing.strategies.torch", kInstance,
     "MCoreMetadata MCoreSavePlan"},
    {"megatron.core.enums", kCalled, "Fp4Recipe Fp8Recipe ModelType"},
    {"megatron.core.rerun_state_machine", kCalled,
     "RerunDiagnostic RerunMode RerunState RerunValidationStatus"},
    {"megatron.core.transformer.enums", kCalled,
     "AttnBackend AttnMaskType AttnType CudaGraphScope "
     "InferenceCudaGraphScope LayerType ModelType"},
    {"megatron.model.enums", kCalled,
     "AttnMaskType AttnType LayerType ModelType PositionEmbeddingType"},
    {"megatron.legacy.model.enums", kCalled,
     "AttnMaskType AttnType LayerType ModelType PositionEmbeddingType"},
    {"nanotron.random", kInstance, "RandomState RandomStates"},
    {"olmo_core.distributed.checkpoint.filesystem", kInstance, "_StorageInfo"},
    {"omegaconf.base", kInstance, "ContainerMetadata Metadata SCMode"},
    {"omegaconf.dictconfig", kInstance, "DictConfig"},
    {"omegaconf.listconfig", kInstance, "ListConfig"},
    {"omegaconf.nodes", kInstance,
     "AnyNode BooleanNode BytesNode EnumNode FloatNode IntegerNode "
     "InterpolationResultNode PathNode StringNode"},
    // Tensor subclasses: made by torch, which fills their __dict__.
    {"torchao.dtypes", kValue | pickle::kArgument, "AffineQuantizedTensor"},
    {"torchao.dtypes.nf4tensor", kValue | pickle::kArgument, "NF4Tensor"},
    // What torchao 0.18 registers with torch's add_safe_globals.
    {"torchao.float8.config", kCalled, "ScalingGranularity"},
    {"torchao.float8.float8_training_tensor", kCalled, "GemmInputRole"},
    {"torchao.float8.float8_training_tensor", kInstance,
     "LinearMMConfig ScaledMMConfig"},
    {"torchao.float8.float8_training_tensor", kValue | pickle::kArgument,
     "Float8TrainingTensor"},
    {"torchao.float8.fsdp_utils", kValue | pickle::kArgument,
     "WeightWithDynamicFloat8CastTensor"},
    {"torchao.float8.inference", kInstance, "Float8MMConfig"},
    {"torchao.optim.subclass_4bit", kValue | pickle::kArgument,
     "OptimState4bit"},
    {"torchao.optim.subclass_8bit", kValue | pickle::kArgument,
     "OptimState8bit"},
    {"torchao.optim.subclass_fp8", kValue | pickle::kArgument, "OptimStateFp8"},
    {"torchao.prototype.mx_formats.config", kCalled, "ScaleCalculationMode"},
    {"torchao.prototype.mx_formats.mx_tensor", kInstance,
     "QuantizeTensorToMXKwargs"},
    {"torchao.prototype.mx_formats.mx_tensor", kValue | pickle::kArgument,
     "MXTensor"},
    {"torchao.prototype.mx_formats.nvfp4_tensor", kInstance,
     "QuantizeTensorToNVFP4Kwargs"},
    {"torchao.prototype.mx_formats.nvfp4_tensor", kValue | pickle::kArgument,
     "NVFP4Tensor"},
    {"torchao.quantization", kValue | pickle::kArgument,
     "Float8Tensor Int4PlainInt32Tensor Int4PreshuffledTensor Int4Tensor "
     "Int4TilePackedTo4dTensor Int8Tensor IntxOpaqueTensor "
     "IntxUnpackedToInt8Tensor"},
    {"torchao.quantization.granularity", kInstance,
     "PerAxis PerBlock PerGroup PerRow PerTensor PerToken"},
    {"torchao.quantization.quant_primitives", kCalled,
     "MappingType ZeroPointDomain"},
    {"torchao.quantization.quantize_.common.kernel_preference", kCalled,
     "KernelPreference"},
    {"torchao.quantization.quantize_.workflows.float8.float8_packing_format",
     kCalled, "Float8PackingFormat"},
    {"torchao.quantization.quantize_.workflows.float8.float8_tensor", kInstance,
     "QuantizeTensorToFloat8Kwargs"},
    {"torchao.quantization.quantize_.workflows.int8.int8_tensor", kInstance,
     "QuantizeTensorToInt8Kwargs"},
    {"torchao.quantization.quantize_.workflows.intx.intx_packing_format",
     kCalled, "IntxPackingFormat"},
    {"torchao.quantization.quantize_.workflows.intx."
     "intx_unpacked_to_int8_tensor",
     kCalled, "IntxUnpackedToInt8TensorActivationQuantization"},
    {"torchao.quantization.quantize_.workflows.nf4.nf4_tensor",
     kValue | pickle::kArgument, "NF4Tensor"},
    {"transformers.debug_utils", kCalled, "DebugOption"},
    {"transformers.integrations.deepspeed", kInstance,
     "HfDeepSpeedConfig HfTrainerDeepSpeedConfig"},
    {"transformers.trainer_pt_utils", kInstance, "AcceleratorConfig"},
    {"transformers.trainer_utils", kCalled,
     "EvaluationStrategy FSDPOption HubStrategy IntervalStrategy SaveStrategy "
     "SchedulerType"},
    {"transformers.training_args", kCalled, "OptimizerNames ParallelMode"},
    {"transformers.training_args", kInstance, "TrainingArguments"},
    {"transformers.training_args_seq2seq", kInstance,
     "Seq2SeqTrainingArguments"},
    {"trl.trainer.dpo_config", kInstance, "DPOConfig"},
    {"trl.trainer.grpo_config", kInstance, "GRPOConfig"},
    {"trl.trainer.sft_config", kInstance, "SFTConfig"},
};

// True if `name` is one of the blank-separated names.
bool has_word(std::string_view names, std::string_view name) {
  if (name.empty() || name.find(' ') != name.npos) return false;
  for (size_t at = names.find(name); at != names.npos;
       at = names.find(name, at + 1)) {
    const size_t end = at + name.size();
    if ((at == 0 || names[at - 1] == ' ') &&
        (end == names.size() || names[end] == ' '))
      return true;
  }
  return false;
}

}  // namespace

bool is_harmless(const pickle::Mention& global) {
  if (global.module.empty()) return false;
  uint16_t allowed = 0;
  for (const Row& row : kRows)
    if (row.module == global.module && has_word(row.names, global.name))
      allowed |= row.uses;
  if (torch::is_allowed_global(global.module + " " + global.name))
    allowed |= kAny;
  return allowed != 0 && (global.uses & ~allowed) == 0;
}

}  // namespace ckpt::scan
