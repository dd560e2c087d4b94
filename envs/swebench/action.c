#include "envs/swebench/action.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "host/json.h"

static const char open_fence[] = "```bash\n", close_fence[] = "\n```";

bool gr_swe_action_read(const char* text, int n, const char** command, int* n_command)
{
    const char* at = memmem(text, (size_t)n, open_fence, sizeof open_fence - 1);
    if (at == NULL || (at > text && at[-1] != '\n')) return false;
    at += sizeof open_fence - 1;
    size_t rest = (size_t)(text + n - at);
    const char* end = memmem(at, rest, close_fence, sizeof close_fence - 1);
    if (end == NULL) return false;
    const char* after = end + sizeof close_fence - 1;
    if (memmem(after, (size_t)(text + n - after), "```", 3) != NULL) return false;
    *command = at;
    *n_command = (int)(end - at);
    return memchr(at, 0, (size_t)*n_command) == NULL;
}

static bool contains(const char* text, size_t n, const char* what)
{
    return memmem(text, n, what, strlen(what)) != NULL;
}

bool gr_swe_action_submits(const char* command, int n)
{
    while (n > 0 && isspace((unsigned char)*command)) command++, n--;
    while (n > 0 && isspace((unsigned char)command[n - 1])) n--;
    return n == 6 && memcmp(command, "submit", 6) == 0;
}

bool gr_swe_action_tests(const char* command, int n)
{
    static const char* const sign[] = {"pytest",    "unittest",  "runtests",   "bin/test", "tox",
                                       "nosetests", "python -c", "python3 -c", ".py"};
    for (int i = 0; i + 1 < GR_COUNT(sign); i++) {
        if (contains(command, (size_t)n, sign[i])) return true;
    }
    return contains(command, (size_t)n, "python") && contains(command, (size_t)n, ".py");
}

static bool is_name_byte(char c) { return isalnum((unsigned char)c) || c == '_'; }

bool gr_swe_action_opens(const char* command, int n, const char* problem)
{
    char name[132];
    for (const char* at = command; at + 3 <= command + n; at++) {
        if (memcmp(at, ".py", 3) != 0) continue;
        if (at + 3 < command + n && is_name_byte(at[3])) continue;
        const char* begin = at;
        while (begin > command && is_name_byte(begin[-1]) && at - begin < 120) begin--;
        size_t length = (size_t)(at - begin);
        if (length < 3) continue; /* too short to mean one file */
        memcpy(name, begin, length);
        name[length] = 0;
        for (const char* found = strstr(problem, name); found != NULL;
             found = strstr(found + 1, name)) {
            bool whole =
                (found == problem || !is_name_byte(found[-1])) && !is_name_byte(found[length]);
            if (whole) return true;
        }
    }
    return false;
}

/* The number before `word` on a line, 0 if there is none. */
static int number_before(const char* line, size_t n, const char* word)
{
    const char* at = memmem(line, n, word, strlen(word));
    if (at == NULL || at == line) return 0;
    const char* begin = at;
    while (begin > line && isdigit((unsigned char)begin[-1]) && at - begin < 8) begin--;
    return begin == at ? 0 : atoi(begin);
}

bool gr_swe_output_counts(const char* output, size_t n, int* passed, int* failed)
{
    bool found = false;
    for (size_t at = 0; at < n;) {
        const char* end = memchr(output + at, '\n', n - at);
        size_t length = end == NULL ? n - at : (size_t)(end - output) - at;
        const char* line = output + at;
        int p = number_before(line, length, " passed");
        int f = number_before(line, length, " failed") + number_before(line, length, " error");
        if (p + f > 0 && contains(line, length, " in ")) {
            *passed = p;
            *failed = f;
            found = true;
        }
        at += length + 1;
    }
    return found;
}

void gr_swe_say(char* text, int* n, int cap, const char* bytes, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes;) {
        size_t length = gr_utf8_length(bytes + i, n_bytes - i);
        bool plain = length > 0 && (bytes[i] == '\n' || bytes[i] == '\t' ||
                                    ((unsigned char)bytes[i] >= 32 && bytes[i] != 127));
        size_t step = length > 0 ? length : 1;
        if (*n + (int)(plain ? step : 1) > cap) break;
        if (plain) {
            memcpy(text + *n, bytes + i, step);
            *n += (int)step;
        } else {
            text[(*n)++] = '?';
        }
        i += step;
    }
    text[*n] = 0;
}
