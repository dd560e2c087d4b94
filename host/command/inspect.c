/* inspect.c - draws the trees of a step from trees.jsonl. */
#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host/command/command.h"

typedef struct options {
    gr_command_words words;
    int64_t step, group; /* -1: last step, all groups with something to see */
    const char* status;
    double min_score;
    bool observations, json;
} options;

static const struct argp_option option_list[] = {
    {"step", 's', "N", 0, "Step to show (default: the last one logged)", 0},
    {"group", 'g', "N", 0, "Only this group of the step (default: the first three)", 0},
    {"status", 'S', "NAME", 0, "Only trees with a node of this status, e.g. loop, pruned", 0},
    {"min-score", 'm', "X", 0, "Only trees with a node scored at least X", 0},
    {"observations", 'o', NULL, 0, "Also print what the world answered", 0},
    {"json", 'j', NULL, 0, "Print the matching lines of trees.jsonl as they are", 0},
    {0},
};

static error_t parse(int key, char* arg, struct argp_state* state)
{
    options* o = state->input;
    switch (key) {
    case 's':
        o->step = strtoll(arg, NULL, 10);
        return 0;
    case 'g':
        o->group = strtoll(arg, NULL, 10);
        return 0;
    case 'S':
        o->status = arg;
        return 0;
    case 'm':
        o->min_score = strtod(arg, NULL);
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

static const char* text(const cJSON* object, const char* key)
{
    const char* s = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, key));
    return s != NULL ? s : "";
}

/* One line; control characters as escapes, so that an episode cannot steer the terminal. */
static void print_escaped(const char* s, int most)
{
    for (int n = 0; *s != 0 && n < most; s++, n++) {
        unsigned char c = (unsigned char)*s;
        if (c == '\n')
            printf("\\n");
        else if (c < 0x20 || c == 0x7f)
            printf("\\x%02x", c);
        else
            putchar(c);
    }
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
    bool success = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(node, "success"));
    double score = number(node, "score"), advantage = number(node, "advantage");
    bool inner = strcmp(status, "inner") == 0;
    printf("%s%s%s%s ", indent, last ? "└─" : "├─", n_children > 1 ? "┬" : "─",
           colour(status, success));
    print_escaped(text(node, "action"), 60);
    printf("  #%.0f", number(node, "id"));
    if (n_children > 1) printf("  branch point x%d", n_children);
    if (!isnan(score)) printf("  score %.2f", score);
    if (!inner) printf("  %s", success ? "success" : status);
    if (number(node, "reward") != 0) printf("  reward %.3g", number(node, "reward"));
    if (!isnan(advantage)) printf("  A %+.2f", advantage);
    printf("%s\n", isatty(STDOUT_FILENO) ? "\033[0m" : "");
    if (!o->observations) return;
    for (const char* s = text(node, "observation"); *s != 0;) {
        int n = (int)strcspn(s, "\n");
        printf("%s%s     ", indent, last ? "  " : "│ ");
        char line[256];
        (void)snprintf(line, sizeof line, "%.*s", n, s);
        print_escaped(line, 200);
        putchar('\n');
        s += n + (s[n] == '\n');
    }
}

static void draw(const options* o, const cJSON* nodes, int parent, const char* indent)
{
    const cJSON *node, *last = NULL;
    cJSON_ArrayForEach(node, nodes)
    {
        if ((int)number(node, "parent") == parent && number(node, "id") > 0) last = node;
    }
    cJSON_ArrayForEach(node, nodes)
    {
        if ((int)number(node, "parent") != parent || number(node, "id") <= 0) continue;
        int id = (int)number(node, "id"), n_children = 0;
        const cJSON* other;
        cJSON_ArrayForEach(other, nodes) n_children += (int)number(other, "parent") == id;
        print_node(o, node, indent, node == last, n_children);
        char deeper[1024];
        (void)snprintf(deeper, sizeof deeper, "%s%s", indent, node == last ? "  " : "│ ");
        draw(o, nodes, id, deeper);
    }
}

static bool matches(const options* o, const cJSON* tree)
{
    bool found = o->status == NULL && isnan(o->min_score);
    const cJSON* node;
    cJSON_ArrayForEach(node, cJSON_GetObjectItemCaseSensitive(tree, "nodes"))
    {
        bool status = o->status == NULL || strcmp(text(node, "status"), o->status) == 0;
        bool score = isnan(o->min_score) || number(node, "score") >= o->min_score;
        found = found || (status && score);
    }
    return found;
}

static void print_tree(const options* o, const cJSON* tree)
{
    const cJSON* nodes = cJSON_GetObjectItemCaseSensitive(tree, "nodes");
    printf("step %.0f  group %.0f  task %.0f  nodes %d\n", number(tree, "step"),
           number(tree, "group"), number(tree, "task"), cJSON_GetArraySize(nodes));
    const char* first = text(cJSON_GetArrayItem(nodes, 0), "observation");
    for (const char* s = first; *s != 0;) {
        int n = (int)strcspn(s, "\n");
        printf("  %.*s\n", n, s);
        s += n + (s[n] == '\n');
    }
    draw(o, nodes, 0, "");
    putchar('\n');
}

/* The last step that trees.jsonl holds, by its last whole line. */
static gr_status show(options* o, FILE* f, const char* path)
{
    char* line = NULL;
    size_t cap = 0;
    int shown = 0;
    for (int pass = o->step >= 0; pass < 2; pass++) {
        rewind(f);
        while (getline(&line, &cap, f) > 0) {
            cJSON* tree = cJSON_Parse(line); /* a half-written last line is not a tree */
            if (tree == NULL) continue;
            int64_t step = (int64_t)number(tree, "step"), group = (int64_t)number(tree, "group");
            bool wanted = step == o->step && (o->group < 0 || group == o->group) &&
                          matches(o, tree) && (o->group >= 0 || o->json || shown < 3);
            if (pass == 0)
                o->step = step;
            else if (wanted && o->json)
                printf("%s", line);
            else if (wanted)
                print_tree(o, tree);
            shown += pass == 1 && wanted;
            cJSON_Delete(tree);
        }
    }
    free(line);
    if (shown == 0)
        return GR_FAIL(GR_EARG, "%s: no such tree at step %lld", path, (long long)o->step);
    return GR_OK;
}

static int run_inspect(int argc, char** argv)
{
    options o = {.step = -1, .group = -1, .min_score = (double)NAN};
    if (argp_parse(&argp, argc, argv, 0, NULL, &o) != 0) return 1;
    char path[1024];
    (void)snprintf(path, sizeof path, "%s/trees.jsonl", o.words.subject);
    FILE* f = fopen(path, "re");
    gr_status st = f == NULL ? GR_FAIL(GR_EIO, "%s: %s", path, strerror(errno)) : show(&o, f, path);
    if (f != NULL) (void)fclose(f);
    return st == GR_OK ? 0 : gr_command_fail();
}

const gr_command gr_command_inspect = {"inspect", "draw the trees of a step", run_inspect};
