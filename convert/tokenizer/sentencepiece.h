// SPDX-License-Identifier: Apache-2.0
// SentencePiece's model: tokenizer.model, spiece.model. A protobuf:
//
//   ModelProto       1 pieces*           2 trainer_spec  3 normalizer_spec
//   SentencePiece    1 text              2 score         3 type
//   TrainerSpec      3 model_type (1 Unigram, 2 BPE)
//   NormalizerSpec   2 precompiled_charsmap              3 add_dummy_prefix
//                    4 remove_extra_whitespaces
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ckpt::families {

// The numbers of GGUF's token types are those of SentencePiece.
enum class TokenType : int {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

struct SentencePiece {
  std::string text;
  float score = 0;
  TokenType type = TokenType::kNormal;
};

struct SentencePieceModel {
  std::vector<SentencePiece> pieces;
  bool unigram = true;
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  std::string charsmap;
};

// Throws input_error that names `path` and the byte.
SentencePieceModel parse_sentencepiece(std::string_view bytes,
                                       const std::string& path);

}  // namespace ckpt::families
