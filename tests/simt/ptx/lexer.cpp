/* lexer.cpp - PTX as tokens. */
#include "tests/simt/ptx/lexer.h"

#include <ctype.h>

namespace simt {
namespace ptx {

static bool is_word(char c)
{
    return isalnum((unsigned char)c) || c == '.' || c == '_' || c == '$' || c == '%';
}

/* Past a comment or a blank at `at`; `at` itself if there is none. */
static size_t skip_blank(const std::string& s, size_t at)
{
    if (isspace((unsigned char)s[at])) return at + 1;
    if (s.compare(at, 2, "//") == 0) return std::min(s.find('\n', at), s.size());
    if (s.compare(at, 2, "/*") != 0) return at;
    const size_t end = s.find("*/", at + 2);
    return end == std::string::npos ? s.size() : end + 2;
}

static size_t end_of_token(const std::string& s, size_t at)
{
    if (s[at] == '"') {
        const size_t end = s.find('"', at + 1);
        return end == std::string::npos ? s.size() : end + 1;
    }
    if (!is_word(s[at])) return at + 1;
    while (at < s.size() && (is_word(s[at]) || s.compare(at, 2, "::") == 0))
        at += s[at] == ':' ? 2 : 1;
    return at;
}

std::vector<Token> tokens_of(const std::string& s)
{
    std::vector<Token> all;
    int line = 1;
    for (size_t at = 0, end; at < s.size(); at = end) {
        end = skip_blank(s, at);
        if (end == at) {
            end = end_of_token(s, at);
            const Token::Kind kind = s[at] == '"'                    ? Token::STRING
                                     : isdigit((unsigned char)s[at]) ? Token::NUMBER
                                     : is_word(s[at])                ? Token::WORD
                                                                     : Token::SIGN;
            all.push_back({kind, s.substr(at, end - at), line});
        }
        for (size_t i = at; i < end; i++) line += s[i] == '\n';
    }
    all.push_back({Token::END, "", line});
    return all;
}

} // namespace ptx
} // namespace simt
