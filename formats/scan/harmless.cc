// SPDX-License-Identifier: Apache-2.0
#include "formats/scan/harmless.h"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "containers/torch/container.h"
#include "lib/embedded.h"
#include "lib/text/words.h"

namespace ckpt::scan {
namespace {

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

// Names in one module, separated by blanks.
struct Row {
  std::string_view module;
  uint16_t uses;
  std::string_view names;
};

// A torch.nn module: its __init__ allocates what it is told to.
constexpr uint16_t kModule = kInstance | pickle::kKept;
constexpr uint16_t kAny =
    kInstance | kCalled | pickle::kInst | pickle::kArgument;

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
    {"pytz", kCalled, "_UTC _p"},
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
    {"zoneinfo", kCalled, "ZoneInfo ZoneInfo._unpickle"},
    // numpy's arrays, scalars and generator states. ndarray takes bytes for
    // what it is told that they are, pointers too: pickles of numpy only name
    // it. What dtype may be made of, lib/pickle/trace.h says.
    {"numpy", kAny,
     "bool_ float16 float32 float64 int16 int32 int64 int8 uint16 uint32 "
     "uint64 uint8"},
    {"numpy", kNamed | pickle::kReduce | pickle::kBuild, "dtype"},
    // Classes of arrays and of elements: what makes them fills in numbers.
    {"numpy", kValue, "matrix memmap ndarray recarray record"},
    {"numpy.ma", kValue, "MaskedArray"},
    {"numpy.ma.core", kValue, "MaskedArray MaskedConstant"},
    {"numpy.ma.core", kNamed | pickle::kReduce | pickle::kBuild,
     "_mareconstruct"},
    {"numpy.rec", kValue, "recarray"},
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
    // joblib's wrapper around an array that follows it in the file.
    {"joblib.numpy_pickle", kInstance, "NumpyArrayWrapper"},
    // pandas: what its frames and indexes reduce to. Those that call a class
    // that they are given are in lib/pickle/trace_calls.cc.
    {"pandas", kInstance | kCalled,
     "BooleanDtype CategoricalDtype DatetimeTZDtype Float32Dtype Float64Dtype "
     "Int16Dtype Int32Dtype Int64Dtype Int8Dtype Interval IntervalDtype NA "
     "NaT Period PeriodDtype SparseDtype StringDtype Timedelta Timestamp "
     "UInt16Dtype UInt32Dtype UInt64Dtype UInt8Dtype"},
    {"pandas", kInstance, "DataFrame Series"},
    {"pandas", kValue,
     "Categorical CategoricalIndex DatetimeIndex Index IntervalIndex "
     "MultiIndex "
     "PeriodIndex RangeIndex TimedeltaIndex"},
    {"pandas._libs.arrays", kNamed | pickle::kReduce | pickle::kBuild,
     "__pyx_unpickle_NDArrayBacked"},
    {"pandas._libs.internals", kNamed | pickle::kReduce, "_unpickle_block"},
    {"pandas._libs.missing", kNamed | pickle::kReduce, "_pickle_NA"},
    {"pandas._libs.sparse", kCalled, "BlockIndex IntIndex"},
    {"pandas._libs.tslibs.nattype", kCalled, "_nat_unpickle"},
    {"pandas._libs.tslibs.offsets", kCalled | pickle::kBuild,
     "BusinessDay BusinessMonthBegin BusinessMonthEnd Day Hour Micro Milli "
     "Minute MonthBegin MonthEnd Nano QuarterBegin QuarterEnd Second Week "
     "YearBegin YearEnd"},
    {"pandas._libs.tslibs.period", kCalled, "_unpickle_period"},
    {"pandas._libs.tslibs.timedeltas", kCalled, "_timedelta_unpickle"},
    {"pandas._libs.tslibs.timestamps", kCalled, "_unpickle_timestamp"},
    {"pandas.arrays", kInstance | pickle::kKept,
     "BooleanArray Categorical DatetimeArray FloatingArray IntegerArray "
     "IntervalArray PeriodArray SparseArray StringArray TimedeltaArray"},
    {"pandas.core.arrays.boolean", kInstance, "BooleanArray BooleanDtype"},
    {"pandas.core.arrays.categorical", kInstance | pickle::kKept,
     "Categorical"},
    {"pandas.core.arrays.datetimes", kInstance | pickle::kKept,
     "DatetimeArray"},
    {"pandas.core.arrays.floating", kInstance,
     "Float32Dtype Float64Dtype FloatingArray"},
    {"pandas.core.arrays.integer", kInstance,
     "Int16Dtype Int32Dtype Int64Dtype Int8Dtype IntegerArray UInt16Dtype "
     "UInt32Dtype UInt64Dtype UInt8Dtype"},
    {"pandas.core.arrays.numpy_", kInstance | pickle::kKept,
     "NumpyExtensionArray PandasArray"},
    {"pandas.core.arrays.period", kInstance | pickle::kKept, "PeriodArray"},
    {"pandas.core.arrays.string_", kInstance | kCalled,
     "StringArray StringDtype"},
    {"pandas.core.arrays.timedeltas", kInstance | pickle::kKept,
     "TimedeltaArray"},
    {"pandas.core.dtypes.dtypes", kInstance | kCalled,
     "CategoricalDtype DatetimeTZDtype IntervalDtype PeriodDtype "
     "SparseDtype"},
    {"pandas.core.frame", kInstance, "DataFrame"},
    {"pandas.core.indexes.base", kValue, "Index"},
    {"pandas.core.indexes.base", kNamed | pickle::kReduce, "_new_Index"},
    {"pandas.core.indexes.category", kValue, "CategoricalIndex"},
    {"pandas.core.indexes.datetimes", kValue, "DatetimeIndex"},
    {"pandas.core.indexes.datetimes", kNamed | pickle::kReduce,
     "_new_DatetimeIndex"},
    {"pandas.core.indexes.interval", kValue, "IntervalIndex"},
    {"pandas.core.indexes.interval", kNamed | pickle::kReduce,
     "_new_IntervalIndex"},
    {"pandas.core.indexes.multi", kValue, "MultiIndex"},
    {"pandas.core.indexes.numeric", kValue,
     "Float64Index Int64Index UInt64Index"},
    {"pandas.core.indexes.period", kValue, "PeriodIndex"},
    {"pandas.core.indexes.period", kNamed | pickle::kReduce,
     "_new_PeriodIndex"},
    {"pandas.core.indexes.range", kValue, "RangeIndex"},
    {"pandas.core.indexes.timedeltas", kValue, "TimedeltaIndex"},
    {"pandas.core.indexes.frozen", kCalled, "FrozenList"},
    {"pandas.core.internals.managers", kInstance | pickle::kReduce,
     "BlockManager SingleBlockManager"},
    {"pandas.core.series", kInstance, "Series"},
    // scikit-learn's compiled classes keep numbers; newObj makes the class that
    // it is given.
    {"sklearn._loss._loss", kCalled,
     "CyAbsoluteError CyExponentialLoss CyHalfBinomialLoss CyHalfGammaLoss "
     "CyHalfMultinomialLoss CyHalfPoissonLoss CyHalfSquaredError "
     "CyHalfTweedieLoss CyHalfTweedieLossIdentity CyHuberLoss CyPinballLoss"},
    {"sklearn.linear_model._sgd_fast", kCalled,
     "Classification EpsilonInsensitive Hinge Huber Log ModifiedHuber "
     "Regression SquaredEpsilonInsensitive SquaredHinge SquaredLoss"},
    {"sklearn.metrics._dist_metrics", kValue,
     "BrayCurtisDistance BrayCurtisDistance64 CanberraDistance64 "
     "ChebyshevDistance64 DiceDistance64 EuclideanDistance "
     "EuclideanDistance32 EuclideanDistance64 HammingDistance64 "
     "HaversineDistance64 JaccardDistance64 MahalanobisDistance64 "
     "ManhattanDistance ManhattanDistance32 ManhattanDistance64 "
     "MinkowskiDistance MinkowskiDistance32 MinkowskiDistance64 "
     "SEuclideanDistance64"},
    {"sklearn.metrics._dist_metrics", kNamed | pickle::kReduce | pickle::kBuild,
     "newObj"},
    {"sklearn.neighbors._ball_tree", kValue, "BallTree BallTree32 BallTree64"},
    {"sklearn.neighbors._ball_tree", kNamed | pickle::kReduce | pickle::kBuild,
     "newObj"},
    {"sklearn.neighbors._kd_tree", kValue, "KDTree KDTree32 KDTree64"},
    {"sklearn.neighbors._kd_tree", kNamed | pickle::kReduce | pickle::kBuild,
     "newObj"},
    {"sklearn.tree._tree", kNamed | pickle::kReduce | pickle::kBuild, "Tree"},
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
     "build_boollist build_doublelist build_intlist build_tensorlist "
     "restore_type_tag"},
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

// What libraries' own classes say of themselves: classes.json, as
// scripts/make_scan_classes.py writes it.
bool is_listed(const char* use, const pickle::Mention& global) {
  static const nlohmann::json all =
      nlohmann::json::parse(embedded_text("classes"));
  const auto found = all.at(use).find(global.module);
  return found != all.at(use).end() &&
         text::has_word(found->get_ref<const std::string&>(), global.name);
}

}  // namespace

bool is_harmless(const pickle::Mention& global) {
  if (global.module.empty()) return false;
  uint16_t allowed = 0;
  for (const Row& row : kRows)
    if (row.module == global.module && text::has_word(row.names, global.name))
      allowed |= row.uses;
  if (is_listed("values", global)) allowed |= kValue;
  if (is_listed("instances", global)) allowed |= kInstance;
  // Classes that TorchScript defines itself, in its code/.
  if (global.module == "__torch__" || global.module.starts_with("__torch__."))
    allowed |= kInstance | kCalled;
  if (torch::is_allowed_global(global.module + " " + global.name))
    allowed |= kAny;
  return allowed != 0 && (global.uses & ~allowed) == 0;
}

}  // namespace ckpt::scan
