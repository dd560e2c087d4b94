#include "envs/swebench/tree.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "envs/swebench/program.h"

#define PATH_MAX_BYTES 4096

/* Arguments: source, commit ("" if the source is a folder of files), patch to put upon it or
 * "", result. git's own archive would leave out what export-ignore names, so files come from a
 * checkout. From a URL one commit is fetched, or all, where the server wants it so. The commit that
 * is made is the same on every machine: no user, no clock. */
static const char script[] =
    "set -eu\n"
    "umask 022\n"
    "export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1 LC_ALL=C\n"
    "export GIT_TERMINAL_PROMPT=0 GIT_ALLOW_PROTOCOL=file:http:https\n"
    "export GIT_AUTHOR_NAME=grove GIT_AUTHOR_EMAIL=grove@localhost\n"
    "export GIT_COMMITTER_NAME=grove GIT_COMMITTER_EMAIL=grove@localhost\n"
    "export GIT_AUTHOR_DATE='2000-01-01T00:00:00Z' GIT_COMMITTER_DATE='2000-01-01T00:00:00Z'\n"
    "source=$1 commit=$2 patch=$3 out=$4\n"
    "if [ -e \"$out\" ] && [ -e \"$out.tree\" ]; then\n"
    "  want=$(cat \"$out.tree\")\n"
    "  have=$(git -C \"$out\" rev-parse 'HEAD^{tree}' 2>/dev/null || echo none)\n"
    "  [ \"$want\" = \"$have\" ] && [ -z \"$(git -C \"$out\" status --porcelain)\" ] && exit 0\n"
    "fi\n"
    "work=$(mktemp -d \"$out.XXXXXX\")\n"
    "trap 'rm -rf \"$work\"' EXIT\n"
    "trap 'exit 1' HUP INT TERM\n"
    "mkdir \"$work/tree\"\n"
    "if [ -z \"$commit\" ]; then\n"
    "  cp -R \"$source/.\" \"$work/tree\"\n"
    "else\n"
    "  case $source in\n"
    "  *://*)\n"
    "    git init -q --bare \"$work/git\"\n"
    "    git -C \"$work/git\" fetch -q --depth 1 \"$source\" \"$commit\" 2>/dev/null ||\n"
    "      git -C \"$work/git\" fetch -q \"$source\" '+refs/*:refs/*'\n"
    "    source=$work/git;;\n"
    "  *.bundle) git clone -q --bare \"$source\" \"$work/git\"; source=$work/git;;\n"
    "  esac\n"
    "  git=$(git -C \"$source\" rev-parse --absolute-git-dir)\n"
    "  git --git-dir=\"$git\" cat-file -e \"$commit^{commit}\" 2>/dev/null || {\n"
    "    echo \"fatal: it has no commit $commit\"; exit 1; }\n"
    "  GIT_INDEX_FILE=$work/index git --git-dir=\"$git\" --work-tree=\"$work/tree\" "
    "-c core.bare=false checkout -q -f \"$commit\" -- .\n"
    "fi\n"
    "cd \"$work/tree\"\n"
    "[ -z \"$patch\" ] || printf %s \"$patch\" | git apply -\n"
    "git -c init.defaultBranch=main init -q\n"
    "git config gc.auto 0\n"
    "git add -A -f\n"
    "git commit -q -m base\n"
    "git pack-refs --all\n"
    "git repack -q -a -d\n"
    "tree=$(git rev-parse 'HEAD^{tree}')\n"
    "cd /\n"
    "rm -rf \"$out\"\n"
    "mv \"$work/tree\" \"$out\"\n"
    "printf '%s\\n' \"$tree\" >\"$out.tree\"\n";

/* Where the repository is: a URL, or an entry of the folder of mirrors. */
static gr_status find_repository(const gr_swe_instance* x, const char* mirrors, char* path)
{
    static const char* const form[] = {"", ".git", ".bundle"};
    const char* slash = strchr(x->repo, '/');
    int n_owner = (int)(slash - x->repo), n = (int)strlen(mirrors);
    if (n == 0) {
        return GR_FAIL(GR_EARG, "swebench.mirrors: empty, but %s needs %s", x->id, x->repo);
    }
    if (strstr(mirrors, "://") != NULL) {
        while (mirrors[n - 1] == '/') n--;
        (void)snprintf(path, PATH_MAX_BYTES, "%.*s/%.1000s", n, mirrors, x->repo);
        return GR_OK;
    }
    for (int i = 0; i < GR_COUNT(form); i++) {
        (void)snprintf(path, PATH_MAX_BYTES, "%.3000s/%.*s__%s%s", mirrors, n_owner, x->repo,
                       slash + 1, form[i]);
        if (access(path, R_OK) == 0) return GR_OK;
    }
    return GR_FAIL(GR_EIO, "%s: no %.*s__%s, .git or .bundle there, which %s needs", mirrors,
                   n_owner, x->repo, slash + 1, x->id);
}

/* As an argument of a program, which does not change it. */
static char* word(const char* text) { return (char*)(uintptr_t)text; }

gr_status gr_swe_tree(const gr_swe_instance* x, const gr_swe_sources* from, char* path)
{
    char source[PATH_MAX_BYTES], log[PATH_MAX_BYTES + 8], reason[320];
    char* root = realpath(from->cache, NULL);
    if (root == NULL) return GR_FAIL(GR_EIO, "%s: %s", from->cache, strerror(errno));
    (void)snprintf(path, PATH_MAX_BYTES, "%.3800s/%s", root, x->id);
    (void)snprintf(log, sizeof log, "%s.log", path);
    free(root);
    bool own = x->tree[0] != 0;
    if (own)
        (void)snprintf(source, sizeof source, "%s", x->tree);
    else
        GR_TRY(find_repository(x, from->mirrors, source));
    char* const argv[] = {word("sh"),
                          word("-c"),
                          word(script),
                          word("grove"),
                          source,
                          word(own ? "" : x->base_commit),
                          word(x->gold_reversed ? x->gold : ""),
                          path,
                          NULL};
    int code = 0;
    gr_status st = gr_swe_program(argv, log, from->fetch_s, &code);
    if (st == GR_OK && code == 0) {
        (void)unlink(log);
        return GR_OK;
    }
    if (st == GR_OK)
        gr_swe_program_reason(log, reason, sizeof reason);
    else
        (void)snprintf(reason, sizeof reason, "%.300s", gr_last_error_text());
    return GR_FAIL(GR_EIO, "%s: cannot make the tree from %s: %s", x->id, source, reason);
}
