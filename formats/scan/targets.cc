// SPDX-License-Identifier: Apache-2.0
// Paths of Python, expressions and code, judged by their words.
#include <algorithm>
#include <cctype>

#include "formats/scan/configs.h"
#include "lib/text/words.h"

namespace ckpt::scan {
namespace {

// What configurations build models, optimizers, data and trainers from. Of
// torch and hydra only these parts.
constexpr std::string_view kFrameworks =
    "accelerate. datasets. diffusers. fairseq2. hydra._internal.core_plugins. "
    "ldm. lightning. lightning_fabric. megatron. monai. nemo. nemo_automodel. "
    "nemo_run. olmo_core. omegaconf. peft. pytorch_lightning. "
    "sentence_transformers. sgm. timm. torch.distributed. torch.nn. "
    "torch.optim. torch.utils.data. torchao. torchaudio. torchdata. "
    "torchmetrics. torchtitan. torchtune. torchvision. transformers. trl. "
    "verl.";

// What a framework's module may have imported for itself, and what loads or
// runs a file: torch.nn.modules.module.os.system is a name like any other.
constexpr std::string_view kNever =
    "CDLL Popen Process Thread Timer builtins call check_call check_output "
    "cloudpickle code codeop compile ctypes dill eval exec execfile get_class "
    "get_method get_object getattr globals hub import_module import_string "
    "importlib inspect instantiate io joblib load load_module loads locate "
    "marshal multiprocessing open operator os partial pathlib pdb pickle "
    "pkgutil popen posix pty pydoc run run_module run_path runpy save setattr "
    "shlex shutil socket spawn subprocess sys system tempfile threading "
    "timeit types unlink urllib warnings webbrowser";

bool is_name(std::string_view word) {
  return !word.empty() && std::isdigit(static_cast<uint8_t>(word[0])) == 0 &&
         std::ranges::all_of(
             word, [](unsigned char c) { return std::isalnum(c) || c == '_'; });
}

bool is_blank(char c) {
  return c == ' ' || c == '\t' || c == '\r' || c == '\n' || c == '\\' ||
         c == '\f';
}

bool is_letter(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

// The words and signs of a text, blanks left out.
std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> found;
  for (size_t at = 0; at < text.size();) {
    size_t end = at;
    while (end < text.size() && is_letter(text[end])) ++end;
    if (end > at)
      found.push_back(text.substr(at, end - at));
    else if (!is_blank(text[at]))
      found.push_back(text.substr(at, 1));
    at = std::max(end, at + 1);
  }
  return found;
}

}  // namespace

bool is_framework_call(std::string_view target) {
  // Constants: torch.bfloat16.
  if (target.starts_with("torch.") &&
      (target.find("float") != target.npos || target.find("int") == 6) &&
      std::ranges::count(target, '.') == 1)
    return is_name(target.substr(6));
  if (!text::starts_with_any(target, kFrameworks)) return false;
  for (size_t at = 0; at <= target.size();) {
    const size_t dot = std::min(target.find('.', at), target.size());
    const std::string_view word = target.substr(at, dot - at);
    if (!is_name(word) || word.starts_with("__") ||
        text::has_word(kNever, word))
      return false;
    at = dot + 1;
  }
  return true;
}

std::string file_operator(std::string_view code) {
  const std::vector<std::string_view> words = words_of(code);
  for (size_t i = 0; i + 2 < words.size(); ++i) {
    if (words[i + 1] != ".") continue;
    const std::string_view space = words[i];
    const std::string_view name = words[i + 2];
    if ((space == "torch" || space == "aten") &&
        (name == "save" || name == "from_file"))
      return std::string(space) + "." + std::string(name);
    if (space == "debugprims") return "debugprims." + std::string(name);
  }
  // The bytecode of mobile models has names of operators as they are.
  for (const std::string_view name : {"aten::save", "aten::from_file"})
    if (code.find(name) != code.npos) return std::string(name);
  return {};
}

bool is_plain_expression(std::string_view text) {
  // torch's own functions of sizes and sympy's of numbers. Any other word of
  // more than a letter and digits may be sympy's lambdify.
  constexpr std::string_view kFunctions =
      "Abs Add And CeilDiv CeilToInt CleanDiv Eq False Float FloatPow "
      "FloatTrueDiv FloorDiv FloorToInt Ge Gt Identity IntTrueDiv Integer "
      "IsNonOverlappingAndDenseIndicator LShift Le Lt Max Min Mod "
      "ModularIndexing Mul Ne Not Or Piecewise Pow PowByNatural PythonMod "
      "RShift Rational RoundDecimal RoundToInt Symbol ToFloat True "
      "TruncToFloat TruncToInt Where ceiling commutative complex even exp "
      "extended_nonnegative extended_positive extended_real finite floor "
      "hermitian imaginary infinite int_oo integer log negative noninteger "
      "nonnegative nonpositive nonzero odd oo positive precision rational "
      "real sqrt zero zoo";
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    size_t end = at;
    while (end < text.size() && (is_letter(text[end]) || text[end] == '.'))
      ++end;
    const std::string_view word = text.substr(at, end - at);
    if (c == '\'') {  // Symbol('s0'), Float('1.5'): a name or a number
      const size_t close = text.find('\'', at + 1);
      if (close == text.npos) return false;
      const std::string_view quoted = text.substr(at + 1, close - at - 1);
      if (quoted.find_first_of("' (,") != quoted.npos ||
          !is_plain_expression(quoted))
        return false;
      at = close + 1;
      continue;
    }
    if (word.empty()) {
      if (std::string_view(" +-*/%(),<>=&|~!").find(c) ==
          std::string_view::npos)
        return false;
      ++at;
      continue;
    }
    at = end;
    if (std::isdigit(static_cast<unsigned char>(c)) != 0) {  // 1.5e10
      if (word.find_first_not_of("0123456789.e") != word.npos) return false;
      continue;
    }
    // s0, u12, zuf3
    const size_t digits = word.find_first_of("0123456789");
    const bool symbol =
        digits != word.npos &&
        word.find_first_not_of("0123456789", digits) == word.npos &&
        word.substr(0, digits).find_first_not_of(
            "abcdefghijklmnopqrstuvwxyz_") == word.npos;
    if (!symbol && !text::has_word(kFunctions, word)) return false;
  }
  return true;
}

}  // namespace ckpt::scan
