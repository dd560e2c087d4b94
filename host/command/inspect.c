/* inspect.c - draws the trees of a step from trees.jsonl. */
#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host/command/command.h"
#include "host/json.h"

typedef struct options {
    gr_command_words words;
    int64_t step, group; /* -1: last step, all groups with something to see */
    const char* status;
    double min_score;
    bool observations, json;
} options;

/* Trees of the step, those that meet the filters, those printed. */
typedef struct tally {
    int trees, met, shown;
} tally;

static const struct argp_option option_list[] = {
    {"step", 's', "N", 0, "Step to show (default: the last one logged)", 0},
    {"group", 'g', "N", 0, "Only this group of the step (default: the first three)", 0},
    {"status", 'S', "NAME", 0,
     "Only trees with such a node, which is marked: loop, pruned, truncated, time_limit, error, "
     "terminal, inner, or success",
     0},
    {"min-score", 'm', "X", 0,
     "Only trees with a node scored at least X (and of that status), which is marked", 0},
    {"observations", 'o', NULL, 0, "Also print what the world answered", 0},
    {"json", 'j', NULL, 0, "Print the matching lines of trees.jsonl as they are", 0},
    {0},
};

static bool is_status(const char* name)
{
    bool known = strcmp(name, "success") == 0;
    for (int i = 0; i < GR_N_STATUSES; i++) known |= strcmp(name, gr_node_status_name[i]) == 0;
    return known;
}

static error_t parse(int key, char* arg, struct argp_state* state)
{
    options* o = state->input;
    char* end = NULL;
    switch (key) {
    case 's':
        o->step = strtoll(arg, &end, 10);
        if (*end != 0 || o->step < 0) argp_error(state, "--step %s: not a step", arg);
        return 0;
    case 'g':
        o->group = strtoll(arg, &end, 10);
        if (*end != 0 || o->group < 0) argp_error(state, "--group %s: not a group", arg);
        return 0;
    case 'S':
        o->status = arg;
        if (!is_status(arg)) argp_error(state, "--status %s: no such status", arg);
        return 0;
    case 'm':
        o->min_score = strtod(arg, &end);
        if (*end != 0 || isnan(o->min_score)) argp_error(state, "--min-score %s: no number", arg);
        return 0;
    case 'o':
        o->observations = true;
        return 0;
    case 'j':
        o->json = true;
        return 0;
    default:
        return gr_command_parse(&o->words, key, arg, state);
    }
}

static const struct argp argp = {
    option_list,
    parse,
    "RUN",
    "Draws the rollout trees of a step: branch points, scores, stops, rewards, advantages.\v"
    "Examples:\n"
    "  grove inspect runs/frozenlake_patr\n"
    "  grove inspect runs/frozenlake_patr --step 40 --group 3 --observations\n"
    "  grove inspect runs/frozenlake_patr --status loop\n",
    NULL,
    NULL,
    NULL};

static double number(const cJSON* object, const char* key)
{
    const cJSON* item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsNumber(item) ? item->valuedouble : (double)NAN;
}

static int64_t whole(const cJSON* object, const char* key)
{
    return gr_json_whole(cJSON_GetObjectItemCaseSensitive(object, key));
}

static const char* text(const cJSON* object, const char* key)
{
    const char* s = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, key));
    return s != NULL ? s : "";
}

static bool flag(const cJSON* object, const char* key)
{
    return cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(object, key));
}

static bool filtered(const options* o) { return o->status != NULL || !isnan(o->min_score); }

static bool meets(const options* o, const cJSON* node)
{
    if (!isnan(o->min_score) && !(number(node, "score") >= o->min_score)) return false;
    if (o->status == NULL) return true;
    if (strcmp(o->status, "success") == 0) return flag(node, "success");
    return strcmp(text(node, "status"), o->status) == 0;
}

static const char* colour(const char* status, bool success)
{
    if (!isatty(STDOUT_FILENO)) return "";
    if (success) return "\033[32m";
    if (strcmp(status, "loop") == 0 || strcmp(status, "pruned") == 0) return "\033[33m";
    if (strcmp(status, "error") == 0) return "\033[31m";
    return "";
}

static void print_node(const options* o, const cJSON* node, const char* indent, bool last,
                       int n_children)
{
    const char* status = text(node, "status");
    bool success = flag(node, "success");
    double score = number(node, "score"), advantage = number(node, "advantage");
    const char *kind = text(node, "kind"), *critique = text(node, "critique");
    bool inner = strcmp(status, "inner") == 0;
    printf("%s%s%s%s ", indent, last ? "└─" : "├─", n_children > 1 ? "┬" : "─",
           colour(status, success));
    const char* action = text(node, "action");
    gr_command_print_text(action, strlen(action), 60);
    printf("  #%.0f", number(node, "id"));
    if (n_children > 1) printf("  branch point x%d", n_children);
    if (!isnan(score)) printf("  score %.2f", score);
    if (!inner) {
        printf("  ");
        gr_command_print_text(success ? "success" : status, success ? 7 : strlen(status), 60);
    }
    if (number(node, "reward") != 0) printf("  reward %.3g", number(node, "reward"));
    if (!isnan(advantage))
        printf("  A %+.2f", advantage);
    else if (number(node, "leaves") > 0) /* leaves below differ */
        printf("  A %+.2f %+.2f", number(node, "a_pos"), number(node, "a_neg"));
    if (flag(node, "stepped") && !flag(node, "valid")) printf("  not understood");
    if (strcmp(kind, "policy") != 0 && kind[0] != 0) {
        printf("  ");
        gr_command_print_text(kind, strlen(kind), 60);
    }
    if (critique[0] != 0) {
        printf("  \"");
        gr_command_print_text(critique, strlen(critique), 100);
        printf("\"");
    }
    if (filtered(o) && meets(o, node)) printf("  <--");
    printf("%s\n", isatty(STDOUT_FILENO) ? "\033[0m" : "");
    if (!o->observations) return;
    const char* observation = text(node, "observation");
    char* margin = NULL;
    if (asprintf(&margin, "%s%s     ", indent, last ? "  " : "│ ") < 0) return;
    gr_command_print_lines(observation, strlen(observation), margin);
    free(margin);
}

/* Successors of every node, in the order of the log: those of node i are child[first[i]..first[i + 1]). */
typedef struct children {
    const cJSON** child;
    int *first, *fill;
    int n; /* ids are below n */
} children;

static bool is_child(const cJSON* node, int n)
{
    double id = number(node, "id"), parent = number(node, "parent");
    return id > 0 && id < n && parent >= 0 && parent < id; /* a damaged log holds no cycle either */
}

/* Counts, sums up, places: linear in the nodes. */
static void children_make(children* c, const cJSON* nodes)
{
    const cJSON* node;
    c->n = cJSON_GetArraySize(nodes);
    size_t n = (size_t)c->n + 2;
    c->child = calloc(n, sizeof *c->child);
    c->first = calloc(n, sizeof *c->first);
    c->fill = calloc(n, sizeof *c->fill);
    GR_ASSERT(c->child != NULL && c->first != NULL && c->fill != NULL, "out of memory");
    cJSON_ArrayForEach(node, nodes)
    {
        if (is_child(node, c->n)) c->first[(int)number(node, "parent") + 1]++;
    }
    for (int i = 0; i < c->n; i++) c->first[i + 1] += c->first[i];
    memcpy(c->fill, c->first, n * sizeof *c->fill);
    cJSON_ArrayForEach(node, nodes)
    {
        if (is_child(node, c->n)) c->child[c->fill[(int)number(node, "parent")]++] = node;
    }
}

static void children_free(children* c)
{
    free(c->child);
    free(c->first);
    free(c->fill);
}

/* `indent` holds `length` bytes and has room for every level below. */
static void draw(const options* o, const children* c, int parent, char* indent, size_t length)
{
    for (int i = c->first[parent]; i < c->first[parent + 1]; i++) {
        const cJSON* node = c->child[i];
        int id = (int)number(node, "id");
        bool last = i + 1 == c->first[parent + 1];
        print_node(o, node, indent, last, c->first[id + 1] - c->first[id]);
        const char* bar = last ? "  " : "│ ";
        memcpy(indent + length, bar, strlen(bar) + 1);
        draw(o, c, id, indent, length + strlen(bar));
        indent[length] = 0;
    }
}

static bool matches(const options* o, const cJSON* tree)
{
    bool found = !filtered(o);
    const cJSON* node;
    cJSON_ArrayForEach(node, cJSON_GetObjectItemCaseSensitive(tree, "nodes"))
    {
        found = found || (number(node, "parent") >= 0 && meets(o, node));
    }
    return found;
}

static void print_tree(const options* o, const cJSON* tree)
{
    const cJSON* nodes = cJSON_GetObjectItemCaseSensitive(tree, "nodes");
    printf("step %.0f  group %.0f  task %.0f  nodes %d\n", number(tree, "step"),
           number(tree, "group"), number(tree, "task"), cJSON_GetArraySize(nodes));
    const char* first = text(cJSON_GetArrayItem(nodes, 0), "observation");
    gr_command_print_lines(first, strlen(first), "  ");
    children c;
    children_make(&c, nodes);
    char* indent = calloc((size_t)c.n + 1, sizeof "│ ");
    GR_ASSERT(indent != NULL, "out of memory");
    if (c.n > 0) draw(o, &c, 0, indent, 0);
    free(indent);
    children_free(&c);
    putchar('\n');
}

/* A line of the log as it is, but for control characters and bytes that are no UTF-8: inside strings as
 * JSON escapes, between tokens left out. */
static void print_json(const char* line)
{
    bool quoted = false;
    for (size_t n = strlen(line), i = 0, length; i < n; i += GR_MAX(length, (size_t)1)) {
        unsigned char c = (unsigned char)line[i], next = (unsigned char)line[i + 1];
        length = gr_utf8_length(line + i, n - i);
        bool c1 = length == 2 && c == 0xc2 && next < 0xa0;
        if (length == 0)
            printf("\\ufffd");
        else if (quoted && (c < 0x20 || c == 0x7f || c1))
            printf("\\u%04x", c1 ? next : c);
        else if (c >= 0x20 && c != 0x7f && !c1)
            (void)fwrite(line + i, 1, length, stdout);
        if (c == '"') quoted = !quoted;
        if (quoted && c == '\\' && next >= 0x20 && next < 0x7f) {
            putchar(next);
            length = 2;
        }
    }
    putchar('\n');
}

/* Prints what of one pass over the log is wanted, or finds the last step in it. */
static gr_status pass_over(options* o, gr_line_reader* r, bool find_step, tally* n)
{
    cJSON* tree;
    rewind(r->file);
    r->number = r->damaged = 0;
    for (;;) {
        GR_TRY(gr_command_next_line(r, &tree));
        if (tree == NULL) return GR_OK;
        int64_t step = whole(tree, "step"), group = whole(tree, "group");
        bool here = !find_step && step == o->step;
        bool met = here && (o->group < 0 || group == o->group) && matches(o, tree);
        bool wanted = met && (o->group >= 0 || o->json || n->shown < 3);
        if (find_step)
            o->step = step;
        else if (wanted && o->json)
            print_json(r->line);
        else if (wanted)
            print_tree(o, tree);
        n->trees += here;
        n->met += met;
        n->shown += wanted;
        cJSON_Delete(tree);
    }
}

static gr_status show(options* o, gr_line_reader* r)
{
    tally n = {0};
    if (o->step < 0) GR_TRY(pass_over(o, r, true, &n));
    GR_TRY(pass_over(o, r, false, &n));
    if (n.shown == 0) {
        return GR_FAIL(GR_EARG, "%s: no such tree at step %lld", r->path, (long long)o->step);
    }
    if (o->json) return GR_OK;
    printf("step %lld: %d tree%s", (long long)o->step, n.trees, n.trees > 1 ? "s" : "");
    if (filtered(o)) printf(", %d with such a node", n.met);
    printf(", %d shown%s\n", n.shown, n.shown < n.met ? " (--group N: another)" : "");
    return GR_OK;
}

static int run_inspect(int argc, char** argv)
{
    options o = {.step = -1, .group = -1, .min_score = (double)NAN};
    if (argp_parse(&argp, argc, argv, 0, NULL, &o) != 0) return 1;
    char path[1024];
    (void)snprintf(path, sizeof path, "%s/trees.jsonl", o.words.subject);
    FILE* f = fopen(path, "re");
    gr_line_reader r = {.file = f, .path = path};
    gr_status st = f == NULL ? GR_FAIL(GR_EIO, "%s: %s", path, strerror(errno)) : show(&o, &r);
    free(r.line);
    if (f != NULL) (void)fclose(f);
    return st == GR_OK ? 0 : gr_command_fail();
}

const gr_command gr_command_inspect = {"inspect", "draw the trees of a step", run_inspect};
