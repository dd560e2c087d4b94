/* parse.cpp - a file of PTX to kernels. Takes what nvcc writes: entries, their registers, shared
 * arrays, labels, instructions, and .loc for the place in the source. */
#include "tests/simt/ptx/lexer.h"
#include "tests/simt/ptx/program.h"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <stdlib.h>

namespace simt {
namespace ptx {

struct Array { /* .shared */
    int64_t bytes, align;
};

static uint32_t instructions; /* so far, of all files */

static const char* const special_names[SPECIALS] = {
    "%tid.x",   "%tid.y",   "%tid.z",    "%ntid.x",   "%ntid.y",   "%ntid.z", "%ctaid.x",
    "%ctaid.y", "%ctaid.z", "%nctaid.x", "%nctaid.y", "%nctaid.z", "%laneid"};

static int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

class Parser {
  public:
    Parser(const std::string& file, const std::string& text)
        : path(file), name(file.substr(file.rfind('/') + 1)), token(tokens_of(text))
    {
    }
    std::vector<Kernel> run()
    {
        read_files();
        while (!is_end()) statement_of_module();
        return std::move(kernels);
    }

  private:
    /* ---- tokens ---- */
    const Token& now() const { return token[at]; }
    bool is_end() const { return now().kind == Token::END; }
    bool is(const char* text) const { return now().text == text; }
    [[noreturn]] void fail(const std::string& why) const
    {
        throw std::runtime_error(path + ":" + std::to_string(now().line) + ": " + why);
    }
    std::string take()
    {
        if (is_end()) fail("the file ends too early");
        return token[at++].text;
    }
    void need(const char* text)
    {
        if (!is(text)) fail("\"" + now().text + "\" where \"" + text + "\" was expected");
        at++;
    }
    bool accept(const char* text)
    {
        if (!is(text)) return false;
        at++;
        return true;
    }
    int64_t number()
    {
        const bool negative = accept("-");
        if (now().kind != Token::NUMBER) fail("\"" + now().text + "\" is no number");
        const int64_t x = (int64_t)strtoull(take().c_str(), nullptr, 0);
        return negative ? -x : x;
    }
    void skip_line()
    {
        for (const int line = now().line; !is_end() && now().line == line;) at++;
    }
    void skip_to(const char* text)
    {
        while (!is(text)) take();
    }
    void skip_braces()
    {
        skip_to("{");
        int depth = 0;
        do {
            depth += is("{") ? 1 : is("}") ? -1 : 0;
            take();
        } while (depth > 0);
    }

    /* ---- module ---- */
    void statement_of_module()
    {
        const std::string word = now().text;
        if (word == ".version" || word == ".target" || word == ".address_size" || word == ".file")
            return skip_line();
        if (word == ".section") return skip_braces();
        if (word == ".visible" || word == ".extern" || word == ".weak") return (void)take();
        if (word == ".entry") return entry();
        if (word == ".shared") return array();
        fail("\"" + word + "\" is not understood");
    }
    /* .file N "path", time, size: at the end of a file, yet its lines are wanted before. */
    void read_files()
    {
        for (size_t i = 0; i + 2 < token.size(); i++) {
            if (token[i].text != ".file" || token[i + 2].kind != Token::STRING) continue;
            const std::string& text = token[i + 2].text;
            const size_t from = text.rfind('/') == std::string::npos ? 1 : text.rfind('/') + 1;
            files[atoi(token[i + 1].text.c_str())] = text.substr(from, text.size() - 1 - from);
        }
    }
    int64_t bytes_of_type()
    {
        const std::string type = take();
        for (const int bits : {8, 16, 32, 64})
            if (type.size() > 2 && type.substr(2) == std::to_string(bits)) return bits / 8;
        fail(type + " is no type");
    }
    int64_t within(int64_t most) /* a number that is sound to allocate by */
    {
        const int64_t n = number();
        if (n < 1 || n > most)
            fail(std::to_string(n) + " is not between 1 and " + std::to_string(most));
        return n;
    }
    /* .shared .align A .b8 name[N]; without N: dynamic shared memory */
    void array()
    {
        Array a = {0, 1};
        take();
        if (accept(".align")) a.align = within(1024);
        a.bytes = bytes_of_type();
        const std::string symbol = take();
        if (accept("[")) a.bytes *= is("]") ? 0 : within(MAX_STATIC);
        accept("]");
        need(";");
        shared[symbol] = a;
    }

    /* ---- kernel ---- */
    void entry()
    {
        take();
        kernels.emplace_back();
        k = &kernels.back();
        k->name = take();
        slots.clear();
        constants.clear();
        labels.clear();
        branches.clear();
        place = {};
        k->start.assign(SPECIALS, 0);
        for (int i = 0; i < SPECIALS; i++) slots[special_names[i]] = i;
        k->first_pc = instructions;
        parameters();
        skip_to("{");
        body();
        for (const auto& b : branches) {
            const auto to = labels.find(b.second);
            if (to == labels.end()) fail("no label " + b.second);
            k->code[b.first].offset = to->second;
        }
        instructions += (uint32_t)k->code.size();
    }
    void parameters() /* ( .param .align A .b8 name[N], ... ) */
    {
        if (!accept("(")) return;
        while (!accept(")")) {
            need(".param");
            int64_t align = accept(".align") ? within(1024) : 0;
            int64_t bytes = bytes_of_type();
            if (align == 0) align = bytes;
            const std::string symbol = take();
            if (accept("[")) {
                bytes *= within(sizeof arguments);
                need("]");
            }
            accept(",");
            k->parameter_bytes = (int)round_up(k->parameter_bytes, align);
            slots[symbol] = constant((uint64_t)k->parameter_bytes);
            k->parameters.push_back({(int)bytes, k->parameter_bytes});
            k->parameter_bytes += (int)bytes;
            if ((size_t)k->parameter_bytes > sizeof arguments) fail("too many parameters");
        }
    }
    void body()
    {
        int depth = 0;
        do {
            if (is_end()) fail("the file ends too early");
            const std::string word = now().text;
            if (word == "{" || word == "}") {
                depth += word == "{" ? 1 : -1;
                take();
            } else if (word == ".reg") {
                registers();
            } else if (word == ".loc") {
                location();
            } else if (word == ".shared") {
                array();
            } else if (word == ".pragma") {
                skip_to(";");
            } else if (word == ";") {
                take();
            } else if (token[at + 1].text == ":") {
                labels[take()] = (int)k->code.size();
                take();
            } else {
                instruction();
            }
        } while (depth > 0);
    }
    void registers() /* .reg .b32 %r<9>, %q; */
    {
        take();
        take();
        do {
            const std::string stem = take();
            if (!accept("<")) {
                add_register(stem);
                continue;
            }
            const int64_t n = within(1 << 16);
            need(">");
            for (int64_t i = 0; i < n; i++) add_register(stem + std::to_string(i));
        } while (accept(","));
        need(";");
    }
    void add_register(const std::string& symbol)
    {
        if (!slots.emplace(symbol, (int)k->start.size()).second) return; /* of another scope */
        k->start.push_back(0);
    }
    int constant(uint64_t bits)
    {
        const auto c = constants.emplace(bits, (int)k->start.size());
        if (c.second) k->start.push_back(bits);
        return c.first->second;
    }

    /* port.cuh and the toolkit wrap single instructions. */
    static bool is_wrapper(const std::string& file)
    {
        const size_t dot = file.rfind('.');
        return file == "port.cuh" || (dot != std::string::npos && file.compare(dot, 2, ".h") == 0);
    }
    /* .loc file line column [, function_name label, inlined_at file line column]: wrappers stand for
     * the line that calls them. */
    void location()
    {
        const int line = now().line;
        take();
        std::string file = files[(int)number()];
        int64_t row = number();
        while (!is_end() && now().line == line) {
            if (!accept("inlined_at")) {
                at++;
                continue;
            }
            const std::string outer = files[(int)number()];
            const int64_t outer_row = number();
            if (!is_wrapper(file)) continue;
            file = outer;
            row = outer_row;
        }
        if (row > 0) place = file + ":" + std::to_string(row);
    }

    /* ---- instructions ---- */
    void instruction()
    {
        Instruction i{};
        const int line = now().line;
        if (accept("@")) {
            i.negated = accept("!");
            i.guard = slot();
        } else {
            i.guard = -1;
        }
        std::fill(std::begin(i.slot), std::end(i.slot), -1);
        const std::string opcode = take();
        std::vector<Operand> operands;
        while (!accept(";")) {
            operands.push_back(operand());
            if (!accept(",") && !is(";")) fail("\"" + now().text + "\" within " + opcode);
        }
        i.elements = 1;
        i.run = decode(opcode, operands, &i);
        if (i.run == nullptr) fail(opcode + ": not an instruction the interpreter knows");
        for (const Operand& o : operands)
            if (o.kind == Operand::LABEL) branches.push_back({k->code.size(), o.label});
        k->places.push_back(place.empty() ? name + ":" + std::to_string(line) : place);
        k->code.push_back(i);
    }
    Operand operand()
    {
        if (accept("[")) {
            Operand o = {Operand::ADDRESS, {slot()}, 0, ""};
            if (accept("+")) o.offset = number();
            need("]");
            return o;
        }
        if (now().text.compare(0, 3, "$L_") == 0) return {Operand::LABEL, {}, 0, take()};
        Operand o = {Operand::SLOTS, {}, 0, ""};
        if (accept("{")) {
            do o.slots.push_back(slot());
            while (accept(","));
            need("}");
        } else {
            o.slots.push_back(slot());
            if (accept("|")) o.slots.push_back(slot());
        }
        return o;
    }
    int slot()
    {
        if (accept("-")) return constant((uint64_t) - (int64_t)immediate());
        if (now().kind == Token::NUMBER) return constant(immediate());
        const std::string word = take();
        if (word == "_") { /* an element no one wants */
            add_register(word);
            return slots[word];
        }
        const auto known = slots.find(word);
        if (known != slots.end()) return known->second;
        if (shared.count(word)) return slots[word] = constant(shared_array(shared[word]));
        at--;
        fail("\"" + word + "\" was not declared");
    }
    uint64_t immediate() /* 12, 0x1F, 0f3F800000, 0d3FF0000000000000 */
    {
        const std::string text = take();
        const bool real = text.size() > 2 && (text[1] == 'f' || text[1] == 'd');
        return strtoull(real ? text.c_str() + 2 : text.c_str(), nullptr, real ? 16 : 0);
    }
    uint64_t shared_array(const Array& a)
    {
        if (a.bytes == 0) return shared_address(dynamic_shared);
        const size_t first = (size_t)round_up((int64_t)k->static_bytes, a.align);
        if (first + (size_t)a.bytes > MAX_STATIC) fail("more than 48 KB of static shared memory");
        k->static_bytes = first + (size_t)a.bytes;
        return shared_address(static_shared) + first;
    }
    std::string path, name;
    std::vector<Token> token;
    size_t at = 0;
    std::vector<Kernel> kernels;
    std::map<int, std::string> files;
    std::map<std::string, Array> shared;
    Kernel* k = nullptr;
    std::string place;
    std::unordered_map<std::string, int> slots, labels;
    std::map<uint64_t, int> constants;
    std::vector<std::pair<size_t, std::string>> branches;
};

std::vector<Kernel> parse(const std::string& path, const std::string& text)
{
    return Parser(path, text).run();
}

} // namespace ptx
} // namespace simt
