// SPDX-License-Identifier: Apache-2.0
// Written by scripts/make_scan_classes.py, which asks the libraries:
//   numpy 2.4.6, scipy 1.17.1, scikit-learn 1.9.1, torch 2.13.0
// Their instances are made by the __new__ of a type of Python's, and BUILD only
// keeps the state.
#include "formats/scan/rows.h"

namespace ckpt::scan {
namespace {

// clang-format off
constexpr Row kClasses[] = {
    // Functions of arrays, element by element.
    {"numpy", kValue,
     "absolute add arccos arccosh arcsin arcsinh arctan arctan2 arctanh "
     "bitwise_and bitwise_count bitwise_or bitwise_xor cbrt ceil conjugate "
     "copysign cos cosh deg2rad degrees divide divmod equal exp exp2 expm1 "
     "fabs float_power floor floor_divide fmax fmin fmod frexp gcd greater "
     "greater_equal heaviside hypot invert isfinite isinf isnan isnat lcm "
     "ldexp left_shift less less_equal log log10 log1p log2 logaddexp "
     "logaddexp2 logical_and logical_not logical_or logical_xor matmul "
     "matvec maximum minimum modf multiply negative nextafter not_equal "
     "positive power rad2deg radians reciprocal remainder right_shift rint "
     "sign signbit sin sinh spacing sqrt square subtract tan tanh trunc "
     "vecdot vecmat"},
    {"scipy.sparse._base", kInstance, "_spbase sparray"},
    {"scipy.sparse._compressed", kInstance, "_cs_matrix"},
    {"scipy.sparse._csc", kInstance, "_csc_base csc_array csc_matrix"},
    {"scipy.sparse._csr", kInstance, "_csr_base csr_array csr_matrix"},
    {"scipy.sparse._data", kInstance, "_data_matrix _minmax_mixin"},
    {"scipy.sparse._dia", kInstance, "_dia_base dia_array dia_matrix"},
    {"scipy.sparse._index", kInstance, "IndexMixin"},
    {"scipy.sparse._lil", kInstance, "_lil_base lil_array lil_matrix"},
    {"scipy.sparse._matrix", kInstance, "spmatrix"},
    {"scipy.sparse.csgraph._flow", kInstance, "MaximumFlowResult"},
    {"scipy.sparse.linalg._eigen.arpack.arpack", kInstance,
     "_ArpackParams _SymmetricArpackParams _UnsymmetricArpackParams"},
    {"scipy.sparse.linalg._expm_multiply", kInstance, "LazyOperatorNormInfo"},
    {"scipy.sparse.linalg._matfuncs", kInstance, "_ExpmPadeHelper"},
    {"scipy.sparse.linalg._special_sparse_arrays", kInstance, "MikotaPair"},
    {"scipy.sparse.linalg._svdp", kInstance, "_AProd"},
    {"sklearn._loss.link", kInstance,
     "BaseLink HalfLogitLink IdentityLink Interval LogLink LogitLink "
     "MultinomialLogit"},
    {"sklearn._loss.loss", kInstance,
     "AbsoluteError ArrayAPILossMixin BaseLoss ExponentialLoss "
     "HalfBinomialLoss HalfBinomialLossArrayAPI HalfGammaLoss "
     "HalfMultinomialLoss HalfMultinomialLossArrayAPI HalfPoissonLoss "
     "HalfPoissonLossArrayAPI HalfSquaredError HalfTweedieLoss "
     "HalfTweedieLossIdentity HuberLoss PinballLoss"},
    {"sklearn.base", kInstance,
     "BaseEstimator BiclusterMixin ClassNamePrefixFeaturesOutMixin "
     "ClassifierMixin ClusterMixin DensityMixin MetaEstimatorMixin "
     "MultiOutputMixin OneToOneFeatureMixin OutlierMixin RegressorMixin "
     "TransformerMixin _UnstableArchMixin"},
    {"sklearn.calibration", kInstance,
     "CalibratedClassifierCV CalibrationDisplay _CalibratedClassifier "
     "_SigmoidCalibration _TemperatureScaling"},
    {"sklearn.cluster._affinity_propagation", kInstance,
     "AffinityPropagation"},
    {"sklearn.cluster._agglomerative", kInstance,
     "AgglomerativeClustering FeatureAgglomeration"},
    {"sklearn.cluster._bicluster", kInstance,
     "BaseSpectral SpectralBiclustering SpectralCoclustering"},
    {"sklearn.cluster._birch", kInstance, "Birch _CFNode"},
    {"sklearn.cluster._bisect_k_means", kInstance,
     "BisectingKMeans _BisectingTree"},
    {"sklearn.cluster._dbscan", kInstance, "DBSCAN"},
    {"sklearn.cluster._feature_agglomeration", kInstance,
     "AgglomerationTransform"},
    {"sklearn.cluster._hdbscan.hdbscan", kInstance, "HDBSCAN"},
    {"sklearn.cluster._kmeans", kInstance,
     "KMeans MiniBatchKMeans _BaseKMeans"},
    {"sklearn.cluster._mean_shift", kInstance, "MeanShift"},
    {"sklearn.cluster._optics", kInstance, "OPTICS"},
    {"sklearn.cluster._spectral", kInstance, "SpectralClustering"},
    {"sklearn.compose._column_transformer", kInstance,
     "ColumnTransformer make_column_selector"},
    {"sklearn.compose._target", kInstance, "TransformedTargetRegressor"},
    {"sklearn.covariance._elliptic_envelope", kInstance, "EllipticEnvelope"},
    {"sklearn.covariance._empirical_covariance", kInstance,
     "EmpiricalCovariance"},
    {"sklearn.covariance._graph_lasso", kInstance,
     "BaseGraphicalLasso GraphicalLasso GraphicalLassoCV"},
    {"sklearn.covariance._robust_covariance", kInstance, "MinCovDet"},
    {"sklearn.covariance._shrunk_covariance", kInstance,
     "LedoitWolf OAS ShrunkCovariance"},
    {"sklearn.cross_decomposition._pls", kInstance,
     "CCA PLSCanonical PLSRegression PLSSVD _PLS"},
    {"sklearn.decomposition._base", kInstance, "_BasePCA"},
    {"sklearn.decomposition._dict_learning", kInstance,
     "DictionaryLearning MiniBatchDictionaryLearning SparseCoder "
     "_BaseSparseCoding"},
    {"sklearn.decomposition._factor_analysis", kInstance, "FactorAnalysis"},
    {"sklearn.decomposition._fastica", kInstance, "FastICA"},
    {"sklearn.decomposition._incremental_pca", kInstance, "IncrementalPCA"},
    {"sklearn.decomposition._kernel_pca", kInstance, "KernelPCA"},
    {"sklearn.decomposition._lda", kInstance, "LatentDirichletAllocation"},
    {"sklearn.decomposition._nmf", kInstance, "MiniBatchNMF NMF _BaseNMF"},
    {"sklearn.decomposition._pca", kInstance, "PCA"},
    {"sklearn.decomposition._sparse_pca", kInstance,
     "MiniBatchSparsePCA SparsePCA _BaseSparsePCA"},
    {"sklearn.decomposition._truncated_svd", kInstance, "TruncatedSVD"},
    {"sklearn.discriminant_analysis", kInstance,
     "DiscriminantAnalysisPredictionMixin LinearDiscriminantAnalysis "
     "QuadraticDiscriminantAnalysis"},
    {"sklearn.dummy", kInstance, "DummyClassifier DummyRegressor"},
    {"sklearn.ensemble._bagging", kInstance,
     "BaggingClassifier BaggingRegressor BaseBagging"},
    {"sklearn.ensemble._base", kInstance,
     "BaseEnsemble _BaseHeterogeneousEnsemble"},
    {"sklearn.ensemble._forest", kInstance,
     "BaseForest ExtraTreesClassifier ExtraTreesRegressor ForestClassifier "
     "ForestRegressor RandomForestClassifier RandomForestRegressor "
     "RandomTreesEmbedding"},
    {"sklearn.ensemble._gb", kInstance,
     "BaseGradientBoosting GradientBoostingClassifier "
     "GradientBoostingRegressor"},
    {"sklearn.ensemble._hist_gradient_boosting.binning", kInstance,
     "_BinMapper"},
    {"sklearn.ensemble._hist_gradient_boosting.gradient_boosting", kInstance,
     "BaseHistGradientBoosting HistGradientBoostingClassifier "
     "HistGradientBoostingRegressor"},
    {"sklearn.ensemble._hist_gradient_boosting.grower", kInstance,
     "TreeGrower TreeNode"},
    {"sklearn.ensemble._hist_gradient_boosting.predictor", kInstance,
     "TreePredictor"},
    {"sklearn.ensemble._hist_gradient_boosting.splitting", kInstance,
     "SplitInfo"},
    {"sklearn.ensemble._iforest", kInstance, "IsolationForest"},
    {"sklearn.ensemble._stacking", kInstance,
     "StackingClassifier StackingRegressor _BaseStacking"},
    {"sklearn.ensemble._voting", kInstance,
     "VotingClassifier VotingRegressor _BaseVoting"},
    {"sklearn.ensemble._weight_boosting", kInstance,
     "AdaBoostClassifier AdaBoostRegressor BaseWeightBoosting"},
    {"sklearn.feature_extraction._dict_vectorizer", kInstance,
     "DictVectorizer"},
    {"sklearn.feature_extraction._hash", kInstance, "FeatureHasher"},
    {"sklearn.feature_extraction.image", kInstance, "PatchExtractor"},
    {"sklearn.feature_extraction.text", kInstance,
     "CountVectorizer HashingVectorizer TfidfTransformer TfidfVectorizer "
     "_VectorizerMixin"},
    {"sklearn.feature_selection._base", kInstance, "SelectorMixin"},
    {"sklearn.feature_selection._from_model", kInstance, "SelectFromModel"},
    {"sklearn.feature_selection._rfe", kInstance, "RFE RFECV"},
    {"sklearn.feature_selection._sequential", kInstance,
     "SequentialFeatureSelector"},
    {"sklearn.feature_selection._univariate_selection", kInstance,
     "GenericUnivariateSelect SelectFdr SelectFpr SelectFwe SelectKBest "
     "SelectPercentile _BaseFilter"},
    {"sklearn.feature_selection._variance_threshold", kInstance,
     "VarianceThreshold"},
    {"sklearn.gaussian_process._gpc", kInstance,
     "GaussianProcessClassifier _BinaryGaussianProcessClassifierLaplace"},
    {"sklearn.gaussian_process._gpr", kInstance, "GaussianProcessRegressor"},
    {"sklearn.gaussian_process.kernels", kInstance,
     "CompoundKernel ConstantKernel DotProduct ExpSineSquared "
     "Exponentiation GenericKernelMixin Kernel KernelOperator Matern "
     "NormalizedKernelMixin PairwiseKernel Product RBF RationalQuadratic "
     "StationaryKernelMixin Sum WhiteKernel"},
    {"sklearn.impute._base", kInstance,
     "MissingIndicator SimpleImputer _BaseImputer"},
    {"sklearn.impute._iterative", kInstance, "IterativeImputer"},
    {"sklearn.impute._knn", kInstance, "KNNImputer"},
    {"sklearn.isotonic", kInstance, "IsotonicRegression"},
    {"sklearn.kernel_approximation", kInstance,
     "AdditiveChi2Sampler Nystroem PolynomialCountSketch RBFSampler "
     "SkewedChi2Sampler"},
    {"sklearn.kernel_ridge", kInstance, "KernelRidge"},
    {"sklearn.linear_model._base", kInstance,
     "LinearClassifierMixin LinearModel LinearRegression "
     "MultiOutputLinearModel SparseCoefMixin"},
    {"sklearn.linear_model._bayes", kInstance, "ARDRegression BayesianRidge"},
    {"sklearn.linear_model._coordinate_descent", kInstance,
     "ElasticNet ElasticNetCV Lasso LassoCV LinearModelCV "
     "MultiTaskElasticNet MultiTaskElasticNetCV MultiTaskLasso "
     "MultiTaskLassoCV"},
    {"sklearn.linear_model._glm._newton_solver", kInstance,
     "NewtonCholeskySolver NewtonSolver"},
    {"sklearn.linear_model._glm.glm", kInstance,
     "GammaRegressor PoissonRegressor TweedieRegressor "
     "_GeneralizedLinearRegressor"},
    {"sklearn.linear_model._huber", kInstance, "HuberRegressor"},
    {"sklearn.linear_model._least_angle", kInstance,
     "Lars LarsCV LassoLars LassoLarsCV LassoLarsIC"},
    {"sklearn.linear_model._linear_loss", kInstance, "LinearModelLoss"},
    {"sklearn.linear_model._logistic", kInstance,
     "LogisticRegression LogisticRegressionCV _LbfgsCallbackBridge"},
    {"sklearn.linear_model._omp", kInstance,
     "OrthogonalMatchingPursuit OrthogonalMatchingPursuitCV"},
    {"sklearn.linear_model._perceptron", kInstance, "Perceptron"},
    {"sklearn.linear_model._quantile", kInstance, "QuantileRegressor"},
    {"sklearn.linear_model._ransac", kInstance, "RANSACRegressor"},
    {"sklearn.linear_model._ridge", kInstance,
     "Ridge RidgeCV RidgeClassifier RidgeClassifierCV _BaseRidge "
     "_BaseRidgeCV _IdentityClassifier _IdentityRegressor "
     "_RidgeClassifierMixin _RidgeGCV"},
    {"sklearn.linear_model._stochastic_gradient", kInstance,
     "BaseSGD BaseSGDClassifier BaseSGDRegressor SGDClassifier "
     "SGDOneClassSVM SGDRegressor _ValidationScoreCallback"},
    {"sklearn.linear_model._theil_sen", kInstance, "TheilSenRegressor"},
    {"sklearn.manifold._classical_mds", kInstance, "ClassicalMDS"},
    {"sklearn.manifold._isomap", kInstance, "Isomap"},
    {"sklearn.manifold._locally_linear", kInstance, "LocallyLinearEmbedding"},
    {"sklearn.manifold._mds", kInstance, "MDS"},
    {"sklearn.manifold._spectral_embedding", kInstance, "SpectralEmbedding"},
    {"sklearn.manifold._t_sne", kInstance, "TSNE"},
    {"sklearn.metrics._pairwise_distances_reduction._dispatcher", kInstance,
     "ArgKmin ArgKminClassMode BaseDistancesReductionDispatcher "
     "RadiusNeighbors RadiusNeighborsClassMode"},
    {"sklearn.metrics._scorer", kInstance,
     "_BaseScorer _CurveScorer _MultimetricScorer _PassthroughScorer "
     "_Scorer"},
    {"sklearn.mixture._base", kInstance, "BaseMixture"},
    {"sklearn.mixture._bayesian_mixture", kInstance,
     "BayesianGaussianMixture"},
    {"sklearn.mixture._gaussian_mixture", kInstance, "GaussianMixture"},
    {"sklearn.model_selection._classification_threshold", kInstance,
     "BaseThresholdClassifier FixedThresholdClassifier "
     "TunedThresholdClassifierCV"},
    {"sklearn.model_selection._search", kInstance,
     "BaseSearchCV GridSearchCV ParameterGrid ParameterSampler "
     "RandomizedSearchCV"},
    {"sklearn.model_selection._search_successive_halving", kInstance,
     "BaseSuccessiveHalving HalvingGridSearchCV HalvingRandomSearchCV "
     "_SubsampleMetaSplitter"},
    {"sklearn.model_selection._split", kInstance,
     "BaseCrossValidator BaseShuffleSplit GroupKFold GroupShuffleSplit "
     "GroupsConsumerMixin KFold LeaveOneGroupOut LeaveOneOut "
     "LeavePGroupsOut LeavePOut PredefinedSplit RepeatedKFold "
     "RepeatedStratifiedKFold ShuffleSplit StratifiedGroupKFold "
     "StratifiedKFold StratifiedShuffleSplit TimeSeriesSplit _BaseKFold "
     "_CVIterableWrapper _RepeatedSplits _UnsupportedGroupCVMixin"},
    {"sklearn.multiclass", kInstance,
     "OneVsOneClassifier OneVsRestClassifier OutputCodeClassifier "
     "_ConstantPredictor"},
    {"sklearn.multioutput", kInstance,
     "ClassifierChain MultiOutputClassifier MultiOutputRegressor "
     "RegressorChain _BaseChain _MultiOutputEstimator"},
    {"sklearn.naive_bayes", kInstance,
     "BernoulliNB CategoricalNB ComplementNB GaussianNB MultinomialNB "
     "_BaseDiscreteNB _BaseNB"},
    {"sklearn.neighbors._base", kInstance,
     "KNeighborsMixin NeighborsBase RadiusNeighborsMixin"},
    {"sklearn.neighbors._classification", kInstance,
     "KNeighborsClassifier RadiusNeighborsClassifier"},
    {"sklearn.neighbors._graph", kInstance,
     "KNeighborsTransformer RadiusNeighborsTransformer"},
    {"sklearn.neighbors._kde", kInstance, "KernelDensity"},
    {"sklearn.neighbors._lof", kInstance, "LocalOutlierFactor"},
    {"sklearn.neighbors._nca", kInstance, "NeighborhoodComponentsAnalysis"},
    {"sklearn.neighbors._nearest_centroid", kInstance, "NearestCentroid"},
    {"sklearn.neighbors._regression", kInstance,
     "KNeighborsRegressor RadiusNeighborsRegressor"},
    {"sklearn.neighbors._unsupervised", kInstance, "NearestNeighbors"},
    {"sklearn.neural_network._multilayer_perceptron", kInstance,
     "BaseMultilayerPerceptron MLPClassifier MLPRegressor"},
    {"sklearn.neural_network._rbm", kInstance, "BernoulliRBM"},
    {"sklearn.neural_network._stochastic_optimizers", kInstance,
     "AdamOptimizer BaseOptimizer SGDOptimizer"},
    {"sklearn.pipeline", kInstance, "FeatureUnion Pipeline"},
    {"sklearn.preprocessing._data", kInstance,
     "Binarizer KernelCenterer MaxAbsScaler MinMaxScaler Normalizer "
     "PowerTransformer QuantileTransformer RobustScaler StandardScaler"},
    {"sklearn.preprocessing._discretization", kInstance, "KBinsDiscretizer"},
    {"sklearn.preprocessing._encoders", kInstance,
     "OneHotEncoder OrdinalEncoder _BaseEncoder"},
    {"sklearn.preprocessing._function_transformer", kInstance,
     "FunctionTransformer"},
    {"sklearn.preprocessing._label", kInstance,
     "LabelBinarizer LabelEncoder MultiLabelBinarizer"},
    {"sklearn.preprocessing._polynomial", kInstance,
     "PolynomialFeatures SplineTransformer"},
    {"sklearn.preprocessing._target_encoder", kInstance, "TargetEncoder"},
    {"sklearn.random_projection", kInstance,
     "BaseRandomProjection GaussianRandomProjection SparseRandomProjection"},
    {"sklearn.semi_supervised._label_propagation", kInstance,
     "BaseLabelPropagation LabelPropagation LabelSpreading"},
    {"sklearn.semi_supervised._self_training", kInstance,
     "SelfTrainingClassifier"},
    {"sklearn.svm._base", kInstance, "BaseLibSVM BaseSVC"},
    {"sklearn.svm._classes", kInstance,
     "LinearSVC LinearSVR NuSVC NuSVR OneClassSVM SVC SVR"},
    {"sklearn.tree._classes", kInstance,
     "BaseDecisionTree DecisionTreeClassifier DecisionTreeRegressor "
     "ExtraTreeClassifier ExtraTreeRegressor"},
    {"sklearn.tree._export", kInstance,
     "Sentinel _BaseTreeExporter _DOTTreeExporter _MPLTreeExporter"},
    {"sklearn.tree._reingold_tilford", kInstance, "DrawTree Tree"},
    {"sklearn.utils._available_if", kInstance, "_AvailableIfDescriptor"},
    {"sklearn.utils._encode", kInstance, "_nandict"},
    {"sklearn.utils._metadata_requests", kInstance,
     "MethodMetadataRequest RequestMethod _MetadataRequester "
     "_RoutingNotSupportedMixin"},
    {"sklearn.utils._param_validation", kInstance,
     "HasMethods Hidden Interval MissingValues Options RealNotInt "
     "StrOptions _ArrayLikes _Booleans _CVObjects _Callables _Constraint "
     "_InstancesOf _IterablesNotString _NanConstraint _NoneConstraint "
     "_PandasNAConstraint _RandomStates _SparseMatrices _VerboseHelper"},
    {"sklearn.utils._plotting", kInstance,
     "_BinaryClassifierCurveDisplayMixin"},
    {"sklearn.utils._pprint", kInstance,
     "KeyValTuple KeyValTupleParam _EstimatorPrettyPrinter"},
    {"sklearn.utils._repr_html.base", kInstance,
     "ReprHTMLMixin _HTMLDocumentationLinkMixin _IDCounter"},
    {"sklearn.utils._repr_html.estimator", kInstance, "_VisualBlock"},
    {"sklearn.utils._set_output", kInstance,
     "ContainerAdapterProtocol ContainerAdaptersManager PandasAdapter "
     "PolarsAdapter _SetOutputMixin"},
    {"sklearn.utils._tags", kInstance,
     "ClassifierTags InputTags RegressorTags Tags TargetTags "
     "TransformerTags"},
    {"sklearn.utils.deprecation", kInstance, "deprecated"},
    {"sklearn.utils.estimator_checks", kInstance, "_NotAnArray"},
    {"sklearn.utils.metaestimators", kInstance, "_BaseComposition"},
    {"torch.nn.modules.activation", kInstance,
     "CELU ELU GELU GLU Hardshrink Hardsigmoid Hardswish Hardtanh "
     "LeakyReLU LogSigmoid Mish MultiheadAttention PReLU RReLU ReLU ReLU6 "
     "SELU SiLU Sigmoid Softmax2d Softplus Softshrink Softsign Tanh "
     "Tanhshrink Threshold"},
    {"torch.nn.modules.adaptive", kInstance, "AdaptiveLogSoftmaxWithLoss"},
    {"torch.nn.modules.batchnorm", kInstance,
     "BatchNorm1d BatchNorm2d BatchNorm3d LazyBatchNorm1d LazyBatchNorm2d "
     "LazyBatchNorm3d SyncBatchNorm _BatchNorm _LazyNormBase _NormBase"},
    {"torch.nn.modules.channelshuffle", kInstance, "ChannelShuffle"},
    {"torch.nn.modules.container", kInstance,
     "ModuleDict ModuleList ParameterDict ParameterList Sequential"},
    {"torch.nn.modules.conv", kInstance,
     "Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d "
     "LazyConv1d LazyConv2d LazyConv3d LazyConvTranspose1d "
     "LazyConvTranspose2d LazyConvTranspose3d _ConvNd _ConvTransposeMixin "
     "_ConvTransposeNd _LazyConvXdMixin"},
    {"torch.nn.modules.distance", kInstance,
     "CosineSimilarity PairwiseDistance"},
    {"torch.nn.modules.dropout", kInstance,
     "AlphaDropout Dropout Dropout1d Dropout2d Dropout3d "
     "FeatureAlphaDropout _DropoutNd"},
    {"torch.nn.modules.flatten", kInstance, "Flatten Unflatten"},
    {"torch.nn.modules.fold", kInstance, "Fold Unfold"},
    {"torch.nn.modules.instancenorm", kInstance,
     "InstanceNorm1d InstanceNorm2d InstanceNorm3d LazyInstanceNorm1d "
     "LazyInstanceNorm2d LazyInstanceNorm3d _InstanceNorm"},
    {"torch.nn.modules.lazy", kInstance, "LazyModuleMixin _LazyProtocol"},
    {"torch.nn.modules.linear", kInstance,
     "Bilinear Identity LazyLinear Linear NonDynamicallyQuantizableLinear"},
    {"torch.nn.modules.linear_cross_entropy", kInstance,
     "_ChunkContext _ChunkViews"},
    {"torch.nn.modules.loss", kInstance,
     "BCELoss BCEWithLogitsLoss CTCLoss CosineEmbeddingLoss "
     "CrossEntropyLoss GaussianNLLLoss HingeEmbeddingLoss HuberLoss "
     "KLDivLoss L1Loss LinearCrossEntropyLoss MSELoss MarginRankingLoss "
     "MultiLabelMarginLoss MultiLabelSoftMarginLoss MultiMarginLoss "
     "NLLLoss PoissonNLLLoss SmoothL1Loss SoftMarginLoss TripletMarginLoss "
     "TripletMarginWithDistanceLoss _Loss _WeightedLoss"},
    {"torch.nn.modules.module", kInstance, "Module"},
    {"torch.nn.modules.normalization", kInstance,
     "CrossMapLRN2d GroupNorm LayerNorm LocalResponseNorm RMSNorm"},
    {"torch.nn.modules.padding", kInstance,
     "CircularPad1d CircularPad2d CircularPad3d ConstantPad1d "
     "ConstantPad2d ConstantPad3d ReflectionPad1d ReflectionPad2d "
     "ReflectionPad3d ReplicationPad1d ReplicationPad2d ReplicationPad3d "
     "ZeroPad1d ZeroPad2d ZeroPad3d _CircularPadNd _ConstantPadNd "
     "_ReflectionPadNd _ReplicationPadNd"},
    {"torch.nn.modules.pixelshuffle", kInstance,
     "PixelShuffle PixelUnshuffle"},
    {"torch.nn.modules.pooling", kInstance,
     "AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d "
     "AdaptiveMaxPool1d AdaptiveMaxPool2d AdaptiveMaxPool3d AvgPool1d "
     "AvgPool2d FractionalMaxPool2d FractionalMaxPool3d LPPool1d LPPool2d "
     "LPPool3d MaxPool1d MaxPool2d MaxPool3d MaxUnpool1d MaxUnpool2d "
     "MaxUnpool3d _AdaptiveAvgPoolNd _AdaptiveMaxPoolNd _AvgPoolNd "
     "_LPPoolNd _MaxPoolNd _MaxUnpoolNd"},
    {"torch.nn.modules.rnn", kInstance,
     "GRU GRUCell LSTM LSTMCell RNN RNNBase RNNCell RNNCellBase"},
    {"torch.nn.modules.sparse", kInstance, "Embedding EmbeddingBag"},
    {"torch.nn.modules.transformer", kInstance,
     "Transformer TransformerDecoder TransformerDecoderLayer "
     "TransformerEncoder TransformerEncoderLayer"},
    {"torch.optim", kInstance, "Muon"},
    {"torch.optim.adadelta", kInstance, "Adadelta"},
    {"torch.optim.adagrad", kInstance, "Adagrad"},
    {"torch.optim.adam", kInstance, "Adam"},
    {"torch.optim.adamax", kInstance, "Adamax"},
    {"torch.optim.adamw", kInstance, "AdamW"},
    {"torch.optim.asgd", kInstance, "ASGD"},
    {"torch.optim.lbfgs", kInstance, "LBFGS"},
    {"torch.optim.lr_scheduler", kInstance,
     "ChainedScheduler ConstantLR CosineAnnealingLR "
     "CosineAnnealingWarmRestarts CyclicLR ExponentialLR LRScheduler "
     "LambdaLR LinearLR MultiStepLR MultiplicativeLR OneCycleLR "
     "PolynomialLR ReduceLROnPlateau SequentialLR StepLR _LRScheduler "
     "_SchedulePhase _enable_get_lr_call _initial_mode"},
    {"torch.optim.nadam", kInstance, "NAdam"},
    {"torch.optim.optimizer", kInstance, "Optimizer _RequiredParameter"},
    {"torch.optim.radam", kInstance, "RAdam"},
    {"torch.optim.rmsprop", kInstance, "RMSprop"},
    {"torch.optim.rprop", kInstance, "Rprop"},
    {"torch.optim.sgd", kInstance, "SGD"},
    {"torch.optim.sparse_adam", kInstance, "SparseAdam"},
    {"torch.optim.swa_utils", kInstance, "AveragedModel SWALR"},
};
// clang-format on

}  // namespace

std::span<const Row> library_classes() { return kClasses; }

}  // namespace ckpt::scan
