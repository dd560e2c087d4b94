/* log_parser.c - the six ways in which the test runners of SWE-bench's 18 repositories speak.
 *
 * Works on lines and words of the log itself; "word" is what Python's str.split gives, as the
 * rules come from Python programs. */
#include "envs/swebench/log_parser.h"

#include <stdlib.h>
#include <string.h>

/* ---- text --------------------------------------------------------------------------------- */

typedef struct span {
    const char* at;
    size_t n;
} span;

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r') || (c >= 28 && c <= 31);
}

static span next_line(span* rest)
{
    const char* end = memchr(rest->at, '\n', rest->n);
    size_t n = end == NULL ? rest->n : (size_t)(end - rest->at);
    span line = {rest->at, n};
    rest->at += n + (end != NULL);
    rest->n -= n + (end != NULL);
    return line;
}

/* Takes the next word from *rest; n is 0 when there is none. */
static span next_word(span* rest)
{
    while (rest->n > 0 && is_space(*rest->at)) rest->at++, rest->n--;
    span word = {rest->at, 0};
    while (word.n < rest->n && !is_space(word.at[word.n])) word.n++;
    rest->at += word.n;
    rest->n -= word.n;
    return word;
}

static span strip(span s)
{
    while (s.n > 0 && is_space(*s.at)) s.at++, s.n--;
    while (s.n > 0 && is_space(s.at[s.n - 1])) s.n--;
    return s;
}

static bool begins(span s, const char* with)
{
    size_t n = strlen(with);
    return s.n >= n && memcmp(s.at, with, n) == 0;
}

static bool ends(span s, const char* with)
{
    size_t n = strlen(with);
    return s.n >= n && memcmp(s.at + s.n - n, with, n) == 0;
}

static bool is(span s, const char* text) { return s.n == strlen(text) && begins(s, text); }

/* The part before the first `text`; false if it is not in there. */
static bool before(span s, const char* text, span* out)
{
    const char* found = memmem(s.at, s.n, text, strlen(text));
    if (found == NULL) return false;
    *out = (span){s.at, (size_t)(found - s.at)};
    return true;
}

static void set(gr_swe_results* out, span name, gr_swe_status status)
{
    gr_swe_results_set(out, name.at, name.n, status);
}

static const struct {
    const char* word;
    gr_swe_status status;
} statuses[] = {
    {"PASSED", GR_SWE_PASSED},   {"FAILED", GR_SWE_FAILED}, {"ERROR", GR_SWE_ERROR},
    {"SKIPPED", GR_SWE_SKIPPED}, {"XFAIL", GR_SWE_XFAIL},
};

static gr_swe_status status_of(span word)
{
    for (int i = 0; i < GR_COUNT(statuses); i++) {
        if (is(word, statuses[i].word)) return statuses[i].status;
    }
    return GR_SWE_UNKNOWN;
}

static bool begins_with_status(span line)
{
    for (int i = 0; i < GR_COUNT(statuses); i++) {
        if (begins(line, statuses[i].word)) return true;
    }
    return false;
}

static bool ends_with_status(span line)
{
    for (int i = 0; i < GR_COUNT(statuses); i++) {
        if (ends(line, statuses[i].word)) return true;
    }
    return false;
}

/* "SKIPPED [2] file:line: why" counts tests and names none. */
static bool is_skip_count(span status, span name)
{
    if (!is(status, "SKIPPED") || name.n < 3 || name.at[0] != '[' || name.at[name.n - 1] != ']') {
        return false;
    }
    for (size_t i = 1; i + 1 < name.n; i++) {
        if (name.at[i] < '0' || name.at[i] > '9') return false;
    }
    return true;
}

/* ---- pytest: "STATUS name[ - reason]" ----------------------------------------------------- */

/* Status and name of a line of pytest's short summary. */
static bool summary_line(span line, span* status, span* name)
{
    if (!begins_with_status(line)) return false;
    *status = next_word(&line);
    *name = next_word(&line);
    if (!begins(*status, "FAILED")) return name->n > 0 && !is_skip_count(*status, *name);
    /* The harness first makes every " - " of such a line a space; none shares its space with
     * the one before. */
    const char* used = NULL;
    while (is(*name, "-") && name->at[-1] == ' ' && name->at - 1 != used && begins(line, " ")) {
        used = line.at;
        *name = next_word(&line);
    }
    return name->n > 0;
}

static void parse_pytest(const char* log, size_t n, gr_swe_results* out)
{
    span rest = {log, n}, status, name;
    while (rest.n > 0) {
        if (summary_line(next_line(&rest), &status, &name)) set(out, name, status_of(status));
    }
}

/* An absolute path as a parameter depends on the machine; its last part does not. Writes the
 * name with that part alone; returns its length. `out` has room for name.n bytes. */
static size_t shorten_option(span name, char* out)
{
    const char* open = memchr(name.at, '[', name.n);
    const char* close = memrchr(name.at, ']', name.n);
    memcpy(out, name.at, name.n);
    if (open == NULL || close == NULL || close < open) return name.n;
    span option = {open + 1, (size_t)(close - open - 1)};
    size_t main_n = (size_t)(open - name.at);
    if (begins(option, "/") && !begins(option, "//") && memchr(option.at, '*', option.n) == NULL) {
        const char* slash = memrchr(option.at, '/', option.n);
        option = (span){slash, option.n - (size_t)(slash - option.at)};
    }
    memmove(out + main_n + 1, option.at, option.n); /* what follows ']' is dropped, as there */
    out[main_n + 1 + option.n] = ']';
    return main_n + option.n + 2;
}

static void parse_pytest_options(const char* log, size_t n, gr_swe_results* out)
{
    span rest = {log, n}, status, name;
    char* text = malloc(n + 1);
    GR_ASSERT(text != NULL, "out of memory");
    while (rest.n > 0) {
        if (!summary_line(next_line(&rest), &status, &name)) continue;
        size_t length = shorten_option(name, text);
        gr_swe_results_set(out, text, length, status_of(status));
    }
    free(text);
}

/* ---- pytest with colours and names of many words ------------------------------------------ */

/* Without "[31m" and the like and without control characters. `out` has room for line.n
 * bytes. */
static span clean(span line, char* out)
{
    size_t n = 0, m = 0;
    for (size_t i = 0; i < line.n; i++) { /* the harness takes colours out first */
        size_t k = i + 1;
        while (line.at[i] == '[' && k < line.n && line.at[k] >= '0' && line.at[k] <= '9') k++;
        if (k > i + 1 && k < line.n && line.at[k] == 'm')
            i = k;
        else
            out[n++] = line.at[i];
    }
    for (size_t i = 0; i < n; i++) {
        if ((unsigned char)out[i] >= 32 || out[i] == 0) out[m++] = out[i];
    }
    return (span){out, m};
}

/* Joins the words of `rest` with single spaces, in place. */
static span join_words(span rest, char* out)
{
    size_t n = 0;
    for (span w = next_word(&rest); w.n > 0; w = next_word(&rest)) {
        if (n > 0) out[n++] = ' ';
        memmove(out + n, w.at, w.n);
        n += w.n;
    }
    return (span){out, n};
}

static void parse_pytest_v2(const char* log, size_t n, gr_swe_results* out)
{
    span rest = {log, n};
    char* text = malloc(n + 1);
    GR_ASSERT(text != NULL, "out of memory");
    while (rest.n > 0) {
        span line = clean(next_line(&rest), text);
        if (begins_with_status(line)) {
            if (begins(line, "FAILED")) (void)before(line, " - ", &line);
            span status = next_word(&line), words = line, name = next_word(&words);
            if (name.n == 0 || is_skip_count(status, name)) continue;
            gr_swe_status s = status_of(status);
            set(out, join_words(line, text), s); /* the status word is overwritten */
        } else if (ends_with_status(line)) {     /* older versions: "name STATUS" */
            line = strip(line);
            size_t last = line.n;
            while (last > 0 && !is_space(line.at[last - 1])) last--;
            span status = {line.at + last, line.n - last};
            gr_swe_status s = status_of(status);
            span name = join_words((span){line.at, last}, text);
            if (name.n > 0) set(out, name, s);
        }
    }
    free(text);
}

/* ---- matplotlib and seaborn --------------------------------------------------------------- */

/* Writes `line` with every `from` as `to`, which is no longer. */
static span replace(span line, const char* from, const char* to, char* out)
{
    size_t n = 0, n_from = strlen(from), n_to = strlen(to);
    for (size_t i = 0; i < line.n;) {
        if (begins((span){line.at + i, line.n - i}, from)) {
            memcpy(out + n, to, n_to);
            n += n_to, i += n_from;
        } else {
            out[n++] = line.at[i++];
        }
    }
    return (span){out, n};
}

/* Newer enums print their name in a parameter where published ids have the number. */
static void parse_matplotlib(const char* log, size_t n, gr_swe_results* out)
{
    char* text = malloc(n + 1);
    GR_ASSERT(text != NULL, "out of memory");
    span s = replace((span){log, n}, "MouseButton.LEFT", "1", text);
    s = replace(s, "MouseButton.RIGHT", "3", text); /* in place: what is written was read */
    parse_pytest(s.at, s.n, out);
    free(text);
}

static void parse_seaborn(const char* log, size_t n, gr_swe_results* out)
{
    span rest = {log, n}, unused;
    while (rest.n > 0) {
        span line = next_line(&rest), words = line;
        span first = next_word(&words), second = next_word(&words);
        if (second.n == 0) continue;
        if (begins(line, "FAILED")) {
            set(out, second, GR_SWE_FAILED);
        } else if (before(line, " PASSED ", &unused)) {
            if (is(second, "PASSED")) set(out, first, GR_SWE_PASSED);
        } else if (begins(line, "PASSED")) {
            set(out, second, GR_SWE_PASSED);
        }
    }
}

/* ---- sympy's own runner ------------------------------------------------------------------- */

/* The head of a failure, "____ file.py:test_x ____", names it as file.py:test_x. */
static void sympy_head(span line, gr_swe_results* out)
{
    const char* first = memchr(line.at, ' ', line.n);
    const char* last = memrchr(line.at, ' ', line.n);
    if (first == NULL) return;
    first++;
    if (last > first && memmem(first, (size_t)(last - first), ".py:", 4) != NULL) {
        set(out, (span){first, (size_t)(last - first)}, GR_SWE_FAILED);
    }
}

static void parse_sympy(const char* log, size_t n, gr_swe_results* out)
{
    span rest = {log, n};
    while (rest.n > 0) sympy_head(next_line(&rest), out);
    rest = (span){log, n};
    while (rest.n > 0) {
        span line = strip(next_line(&rest)), words = line;
        if (!begins(line, "test_")) continue;
        span name = next_word(&words);
        if (ends(line, " E")) set(out, name, GR_SWE_ERROR);
        if (ends(line, " F")) set(out, name, GR_SWE_FAILED);
        if (ends(line, " ok")) set(out, name, GR_SWE_PASSED);
    }
}

/* ---- django's runner: unittest's "name ... status", often with output between ------------- */

static void django_line(span line, gr_swe_results* out)
{
    static const char* const suffix[] = {" ... ok", " ... OK", " ...  OK"};
    static const char* const migration =
        "Applying sites.0002_alter_domain_unique...test_no_migrations";
    span name;
    for (int i = 0; i < GR_COUNT(suffix); i++) {
        if (!ends(line, suffix[i])) continue;
        if (begins(line, migration)) {
            const char* dots = memmem(line.at, line.n, "...", 3);
            line = strip((span){dots + 3, line.n - (size_t)(dots + 3 - line.at)});
        }
        size_t n_suffix = strlen(suffix[i]);
        if (line.n >= n_suffix) set(out, (span){line.at, line.n - n_suffix}, GR_SWE_PASSED);
        break;
    }
    if (before(line, " ... skipped", &name)) set(out, name, GR_SWE_SKIPPED);
    if (ends(line, " ... FAIL") && before(line, " ... FAIL", &name)) set(out, name, GR_SWE_FAILED);
    if (ends(line, " ... ERROR") && before(line, " ... ERROR", &name)) set(out, name, GR_SWE_ERROR);
    span words = line, head = next_word(&words);
    name = begins(line, "FAIL:") || begins(line, "ERROR:") ? next_word(&words) : (span){0};
    if (name.n > 0) set(out, name, head.at[0] == 'F' ? GR_SWE_FAILED : GR_SWE_ERROR);
}

/* The name before " ... " that ends at `end`; false if that is not there. */
static bool django_name(span log, const char* end, span* name)
{
    if (end - log.at < 5 || memcmp(end - 4, "...", 3) != 0) return false;
    const char* stop = end - 5;
    if (!is_space(stop[0]) || !is_space(end[-1])) return false;
    const char* line = memrchr(log.at, '\n', (size_t)(stop - log.at));
    line = line == NULL ? log.at : line + 1;
    *name = (span){line, (size_t)(stop - line)};
    return true;
}

/* "name ... BEGIN text END": the runner's "ok" is the last line of END, behind output of the
 * test. */
static void django_interrupted(span log, const char* begin, const char* end, bool one_line,
                               gr_swe_results* out)
{
    size_t n_begin = strlen(begin), n_end = strlen(end);
    span rest = log, name;
    const char* found;
    while ((found = memmem(rest.at, rest.n, begin, n_begin)) != NULL) {
        rest.n -= (size_t)(found + n_begin - rest.at);
        rest.at = found + n_begin;
        const char* stop = memmem(rest.at, rest.n, end, n_end);
        if (stop == NULL) return;
        if (one_line && memchr(rest.at, '\n', (size_t)(stop - rest.at)) != NULL) continue;
        stop += n_end;
        if (stop < log.at + log.n && *stop != '\n') continue;
        if (django_name(log, found, &name)) set(out, name, GR_SWE_PASSED);
    }
}

static void parse_django(const char* log, size_t n, gr_swe_results* out)
{
    static const char* const equivalent = "--version is equivalent to version";
    span rest = {log, n}, previous = {0}, name;
    while (rest.n > 0) {
        span line = strip(next_line(&rest));
        if (before(line, equivalent, &name)) {
            set(out, (span){equivalent, strlen(equivalent)}, GR_SWE_PASSED);
        }
        if (before(line, " ... ", &name)) previous = name;
        django_line(line, out);
        if (begins(line, "ok") && previous.at != NULL) set(out, previous, GR_SWE_PASSED);
    }
    span all = {log, n};
    django_interrupted(all, "Testing against Django installed in ", " silenced).\nok", false, out);
    django_interrupted(all, "Internal Server Error: /", "/\nok", true, out);
    django_interrupted(all, "System check identified no issues (0 silenced)\nok", "", true, out);
}

/* ---- who speaks how ----------------------------------------------------------------------- */

static const gr_swe_parser parsers[] = {
    {"pytest", parse_pytest},       {"pytest_options", parse_pytest_options},
    {"pytest_v2", parse_pytest_v2}, {"matplotlib", parse_matplotlib},
    {"seaborn", parse_seaborn},     {"sympy", parse_sympy},
    {"django", parse_django},
};

#define PYTEST "pytest -rA"

static const gr_swe_repo repos[] = {
    {"astropy/astropy", "pytest_v2", PYTEST},
    {"django/django", "django",
     "./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1"},
    {"marshmallow-code/marshmallow", "pytest", PYTEST},
    {"matplotlib/matplotlib", "matplotlib", PYTEST},
    {"mwaskom/seaborn", "seaborn", "pytest --no-header -rA"},
    {"pallets/flask", "pytest", PYTEST},
    {"psf/requests", "pytest_options", PYTEST},
    {"pvlib/pvlib-python", "pytest", PYTEST},
    {"pydata/xarray", "pytest", PYTEST},
    {"pydicom/pydicom", "pytest_options", PYTEST},
    {"pylint-dev/astroid", "pytest", PYTEST},
    {"pylint-dev/pylint", "pytest_options", PYTEST},
    {"pytest-dev/pytest", "pytest", PYTEST},
    {"pyvista/pyvista", "pytest", PYTEST},
    {"scikit-learn/scikit-learn", "pytest_v2", PYTEST},
    {"sphinx-doc/sphinx", "pytest_v2", PYTEST},
    {"sqlfluff/sqlfluff", "pytest", PYTEST},
    {"sympy/sympy", "sympy",
     "PYTHONWARNINGS='ignore::UserWarning,ignore::SyntaxWarning' bin/test -C --verbose"},
};

const gr_swe_repo* gr_swe_repo_find(const char* repo)
{
    for (int i = 0; i < GR_COUNT(repos); i++) {
        if (strcmp(repos[i].repo, repo) == 0) return &repos[i];
    }
    return NULL;
}

/* "parse_log_pvlib" is the parser of pvlib/pvlib-python: named after the start of a
 * repository's name. */
static const char* parser_of_alias(const char* alias)
{
    size_t n = strlen(alias);
    for (int i = 0; n > 0 && i < GR_COUNT(repos); i++) {
        const char* name = strchr(repos[i].repo, '/') + 1;
        bool starts = strncmp(name, alias, n) == 0 && (name[n] == 0 || name[n] == '-');
        if (starts) return repos[i].parser;
    }
    return alias;
}

const gr_swe_parser* gr_swe_parser_find(const char* name)
{
    if (strncmp(name, "parse_log_", 10) == 0) {
        name += 10;
        if (strncmp(name, "pytest_", 7) != 0) name = parser_of_alias(name);
    }
    for (int i = 0; i < GR_COUNT(parsers); i++) {
        if (strcmp(parsers[i].name, name) == 0) return &parsers[i];
    }
    return NULL;
}

/* ---- a whole log -------------------------------------------------------------------------- */

const char* gr_swe_log_cut(const char* log, size_t n, size_t* n_cut)
{
    static const char* const bad[] = {">>>>> Patch Apply Failed", ">>>>> Reset Failed",
                                      ">>>>> Tests Errored", ">>>>> Tests Timed Out"};
    for (int i = 0; i < GR_COUNT(bad); i++) {
        if (memmem(log, n, bad[i], strlen(bad[i])) != NULL) return NULL;
    }
    const char* start = memmem(log, n, GR_SWE_START, strlen(GR_SWE_START));
    if (start == NULL || memmem(log, n, GR_SWE_END, strlen(GR_SWE_END)) == NULL) return NULL;
    start += strlen(GR_SWE_START);
    *n_cut = n - (size_t)(start - log);
    const char* end = memmem(start, *n_cut, GR_SWE_END, strlen(GR_SWE_END));
    if (end != NULL) *n_cut = (size_t)(end - start);
    const char* again = memmem(start, *n_cut, GR_SWE_START, strlen(GR_SWE_START));
    if (again != NULL) *n_cut = (size_t)(again - start);
    return start;
}

bool gr_swe_log_read(const gr_swe_parser* p, const char* log, size_t n, int exit_code,
                     gr_swe_results* out)
{
    size_t n_cut = 0;
    const char* cut = gr_swe_log_cut(log, n, &n_cut);
    if (cut == NULL) return false;
    p->parse(cut, n_cut, out);
    if (out->n == 0) p->parse(log, n, out); /* some runners write beside the markers */
    if (exit_code == 0) return true;
    for (int64_t i = 0; i < out->n; i++) {
        gr_swe_status s = out->result[i].status;
        if (s == GR_SWE_FAILED || s == GR_SWE_ERROR) return true;
    }
    return out->n == 0;
}
