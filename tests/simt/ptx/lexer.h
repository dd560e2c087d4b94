/* lexer.h - PTX as tokens. */
#pragma once
#include <string>
#include <vector>

namespace simt {
namespace ptx {

struct Token {
    enum Kind { WORD, NUMBER, STRING, SIGN, END } kind;
    std::string text;
    int line;
};

/* Words hold letters, digits, and any of . _ $ % and the double colon; the last token is an END. */
std::vector<Token> tokens_of(const std::string& text);

} // namespace ptx
} // namespace simt
