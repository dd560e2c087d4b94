#include "envs/swebench/tree.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define PATH_MAX_BYTES 4096

/* Arguments: source, commit ("" if the source is a folder of files), patch to put upon it or
 * "", result, cache. git's own archive would leave out what export-ignore names, so files come
 * from a checkout. The commit is the same on every machine: no user, no clock. */
static const char script[] =
    "set -eu\n"
    "umask 022\n"
    "export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1 LC_ALL=C\n"
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
    "mkdir \"$work/tree\"\n"
    "if [ -z \"$commit\" ]; then\n"
    "  cp -R \"$source/.\" \"$work/tree\"\n"
    "else\n"
    "  case $source in *.bundle) git clone -q --bare \"$source\" \"$work/git\"; source=$work/git;; "
    "esac\n"
    "  git=$(git -C \"$source\" rev-parse --absolute-git-dir)\n"
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

/* Runs the script; what it writes to standard error goes to `log`, a file. */
static gr_status run(char* const argv[], const char* log, int* code)
{
    extern char** environ;
    posix_spawn_file_actions_t files;
    pid_t child = 0;
    int error = posix_spawn_file_actions_init(&files);
    if (error == 0) {
        (void)posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
        (void)posix_spawn_file_actions_addopen(&files, 2, log, O_WRONLY | O_CREAT | O_TRUNC, 0644);
        (void)posix_spawn_file_actions_adddup2(&files, 2, 1);
        error = posix_spawn(&child, "/bin/sh", &files, NULL, argv, environ);
        (void)posix_spawn_file_actions_destroy(&files);
    }
    if (error != 0) return GR_FAIL(GR_EIO, "/bin/sh: %s", strerror(error));
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
    *code = WIFEXITED(status) ? WEXITSTATUS(status) : 255;
    return GR_OK;
}

/* The last line of a log, for the message. */
static void last_line(const char* path, char* line, size_t cap)
{
    char text[1024];
    (void)snprintf(line, cap, "no reason given");
    FILE* f = fopen(path, "rbe");
    while (f != NULL && fgets(text, sizeof text, f) != NULL) {
        text[strcspn(text, "\n")] = 0;
        if (text[0] != 0) (void)snprintf(line, cap, "%.300s", text);
    }
    if (f != NULL) (void)fclose(f);
}

static gr_status find_mirror(const gr_swe_instance* x, const char* mirrors, char* path)
{
    static const char* const form[] = {"", ".git", ".bundle"};
    const char* slash = strchr(x->repo, '/');
    if (mirrors[0] == 0) {
        return GR_FAIL(GR_EARG, "swebench.mirrors: empty, but %s needs %s", x->id, x->repo);
    }
    for (int i = 0; i < GR_COUNT(form); i++) {
        (void)snprintf(path, PATH_MAX_BYTES, "%.3000s/%.*s__%s%s", mirrors, (int)(slash - x->repo),
                       x->repo, slash + 1, form[i]);
        if (access(path, R_OK) == 0) return GR_OK;
    }
    return GR_FAIL(GR_EIO, "%s: no %.*s__%s, .git or .bundle there, which %s needs", mirrors,
                   (int)(slash - x->repo), x->repo, slash + 1, x->id);
}

gr_status gr_swe_tree(const gr_swe_instance* x, const char* mirrors, const char* cache, char* path)
{
    char source[PATH_MAX_BYTES], log[PATH_MAX_BYTES + 8], reason[320];
    char* root = realpath(cache, NULL);
    if (root == NULL) return GR_FAIL(GR_EIO, "%s: %s", cache, strerror(errno));
    (void)snprintf(path, PATH_MAX_BYTES, "%.3800s/%s", root, x->id);
    (void)snprintf(log, sizeof log, "%s.log", path);
    free(root);
    bool own = x->tree[0] != 0;
    if (own)
        (void)snprintf(source, sizeof source, "%s", x->tree);
    else
        GR_TRY(find_mirror(x, mirrors, source));
    char* const argv[] = {(char[]){"sh"},
                          (char[]){"-c"},
                          (char*)(uintptr_t)script,
                          (char[]){"grove"},
                          source,
                          own ? (char[]){""} : x->base_commit,
                          x->gold_reversed ? x->gold : (char[]){""},
                          path,
                          NULL};
    int code = 0;
    GR_TRY(run(argv, log, &code));
    if (code != 0) {
        last_line(log, reason, sizeof reason);
        return GR_FAIL(GR_EIO, "%s: cannot make the tree from %s: %s", x->id, source, reason);
    }
    (void)unlink(log);
    return GR_OK;
}
