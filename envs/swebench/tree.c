#include "envs/swebench/tree.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "envs/swebench/program.h"

#define PATH_MAX_BYTES 4096

#if defined(__aarch64__)
#define ARCH "arm64"
#else
#define ARCH "x86_64"
#endif

/* Arguments: tool ("": the source is a repository), source (repository, folder or image), commit
 * ("": the source is a folder), patch to put upon it or "", result.
 *
 * git's own archive would leave out what export-ignore names, so files come from a checkout. From
 * a URL one commit is fetched, or all, where the server wants it so. Of an image the files are
 * kept as they are, all as ours, and in /testbed what its repository tracks stays tracked,
 * whatever else it ignores; its .git is read for that list alone. The commit that is made is the
 * same on every machine: no user, no clock. */
static const char script[] =
    "set -eu\n"
    "umask 022\n"
    "export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1 LC_ALL=C\n"
    "export GIT_TERMINAL_PROMPT=0 GIT_ALLOW_PROTOCOL=file:http:https\n"
    "export GIT_AUTHOR_NAME=grove GIT_AUTHOR_EMAIL=grove@localhost\n"
    "export GIT_COMMITTER_NAME=grove GIT_COMMITTER_EMAIL=grove@localhost\n"
    "export GIT_AUTHOR_DATE='2000-01-01T00:00:00Z' GIT_COMMITTER_DATE='2000-01-01T00:00:00Z'\n"
    "tool=$1 source=$2 commit=$3 patch=$4 out=$5\n"
    "fail() { echo \"fatal: $1\"; exit 1; }\n"
    "under=${tool:+/testbed}\n"
    "if [ -e \"$out\" ] && [ -e \"$out.tree\" ]; then\n"
    "  want=$(cat \"$out.tree\")\n"
    "  have=$(git -C \"$out$under\" rev-parse 'HEAD^{tree}' 2>/dev/null || echo none)\n"
    "  [ \"$want\" = \"$have${tool:+ $source}\" ] &&\n"
    "    [ -z \"$(git -C \"$out$under\" status --porcelain)\" ] && exit 0\n"
    "fi\n"
    "[ -z \"$tool\" ] || command -v \"$tool\" >/dev/null || fail \"no program $tool in PATH\"\n"
    "work=$(mktemp -d \"$out.XXXXXX\")\n"
    "box=\n"
    "clean() {\n"
    "  [ -z \"$box\" ] || \"$tool\" rm -f \"$box\" >/dev/null 2>&1 || true\n"
    "  chmod -R u+rwX \"$work\" 2>/dev/null || true\n"
    "  rm -rf \"$work\"\n"
    "}\n"
    "trap clean EXIT\n"
    "trap 'exit 1' HUP INT TERM\n"
    "[ \"$tool\" = apptainer ] || mkdir \"$work/tree\"\n"
    /* the files */
    "case $tool in\n"
    "podman|docker)\n"
    "  \"$tool\" image inspect \"$source\" >/dev/null 2>&1 || \"$tool\" pull -q \"$source\"\n"
    "  box=$(\"$tool\" create \"$source\" true)\n"
    "  \"$tool\" export -o \"$work/tar\" \"$box\"\n"
    "  tar -xf \"$work/tar\" -C \"$work/tree\" --no-same-owner --anchored --exclude='dev/*' "
    "--exclude='proc/*' --exclude='sys/*'\n"
    "  rm \"$work/tar\";;\n"
    "apptainer) apptainer build --fix-perms --sandbox \"$work/tree\" \"docker://$source\";;\n"
    "*)\n"
    "  if [ -z \"$commit\" ]; then\n"
    "    cp -R \"$source/.\" \"$work/tree\"\n"
    "  else\n"
    "    case $source in\n"
    "    *://*)\n"
    "      git init -q --bare \"$work/git\"\n"
    "      git -C \"$work/git\" fetch -q --depth 1 \"$source\" \"$commit\" 2>/dev/null ||\n"
    "        git -C \"$work/git\" fetch -q \"$source\" '+refs/*:refs/*'\n"
    "      source=$work/git;;\n"
    "    *.bundle) git clone -q --bare \"$source\" \"$work/git\"; source=$work/git;;\n"
    "    esac\n"
    "    git=$(git -C \"$source\" rev-parse --absolute-git-dir)\n"
    "    git --git-dir=\"$git\" cat-file -e \"$commit^{commit}\" 2>/dev/null ||\n"
    "      fail \"it has no commit $commit\"\n"
    "    GIT_INDEX_FILE=$work/index git --git-dir=\"$git\" --work-tree=\"$work/tree\" "
    "-c core.bare=false checkout -q -f \"$commit\" -- .\n"
    "  fi;;\n"
    "esac\n"
    /* what of them is tracked */
    "cd \"$work/tree\"\n"
    ": >\"$work/list\"\n"
    "if [ -n \"$tool\" ]; then\n"
    "  [ -d testbed ] && [ ! -L testbed ] || fail 'the image has no folder /testbed'\n"
    "  if [ -d etc ] && [ ! -L etc ] && [ ! -L etc/hosts ] && [ ! -s etc/hosts ]; then\n"
    "    echo '127.0.0.1 localhost' >etc/hosts\n" /* containers get theirs when they start */
    "  fi\n"
    "  cd testbed\n"
    "  [ ! -d .git ] || git -c core.fsmonitor=false ls-files -z >\"$work/list\"\n"
    "  rm -rf .git\n"
    "fi\n"
    "[ -z \"$patch\" ] || printf %s \"$patch\" | git apply -\n"
    "git -c init.defaultBranch=main init -q\n"
    "git config gc.auto 0\n"
    "if [ -n \"$tool\" ]; then git add -A; else git add -A -f; fi\n"
    "git update-index -z --add --remove --stdin <\"$work/list\"\n"
    "git commit -q -m base\n"
    "git pack-refs --all\n"
    "git repack -q -a -d\n"
    "tree=$(git rev-parse 'HEAD^{tree}')\n"
    "cd /\n"
    "[ ! -e \"$out\" ] || chmod -R u+rwX \"$out\"\n"
    "rm -rf \"$out\"\n"
    "mv \"$work/tree\" \"$out\"\n"
    "printf '%s\\n' \"$tree${tool:+ $source}\" >\"$out.tree\"\n";

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

/* The image of an instance, by its own word or by the official harness's rule. */
static gr_status find_image(const gr_swe_instance* x, const char* images, char* name)
{
    char id[256];
    int n = 0;
    if (x->image[0] != 0) {
        (void)snprintf(name, PATH_MAX_BYTES, "%.1000s", x->image);
        return GR_OK;
    }
    if (x->tree[0] != 0) {
        return GR_FAIL(GR_EDATA, "%s: brings its own sources, but swebench.backend needs an image",
                       x->id);
    }
    for (const char* at = x->id; *at != 0; at++) id[n++] = (char)tolower((unsigned char)*at);
    id[n] = 0;
    char* split = strstr(id, "__");
    (void)snprintf(name, PATH_MAX_BYTES, "%.300s/sweb.eval." ARCH ".%.*s%s%s:latest", images,
                   split != NULL ? (int)(split - id) : n, id, split != NULL ? "_1776_" : "",
                   split != NULL ? split + 2 : "");
    return GR_OK;
}

/* What the tree is made from. */
static gr_status find_source(const gr_swe_instance* x, const gr_swe_sources* from, char* source)
{
    if (from->backend != GR_SWE_SANDBOX) return find_image(x, from->images, source);
    if (x->tree[0] == 0) return find_repository(x, from->mirrors, source);
    (void)snprintf(source, PATH_MAX_BYTES, "%s", x->tree);
    return GR_OK;
}

gr_status gr_swe_check_source(const gr_swe_instance* x, const gr_swe_sources* from)
{
    char source[PATH_MAX_BYTES];
    return find_source(x, from, source);
}

/* As an argument of a program, which does not change it. */
static char* word(const char* text) { return (char*)(uintptr_t)text; }

gr_status gr_swe_tree(const gr_swe_instance* x, const gr_swe_sources* from, char* path)
{
    static const char* const tool[] = {"", "podman", "docker", "apptainer"};
    char source[PATH_MAX_BYTES], log[PATH_MAX_BYTES + 8], reason[320];
    bool image = from->backend != GR_SWE_SANDBOX, files = !image && x->tree[0] != 0;
    char* root = realpath(from->cache, NULL);
    if (root == NULL) return GR_FAIL(GR_EIO, "%s: %s", from->cache, strerror(errno));
    (void)snprintf(path, PATH_MAX_BYTES, "%.3800s/%s%s", root, x->id, image ? ".image" : "");
    (void)snprintf(log, sizeof log, "%s.log", path);
    free(root);
    GR_TRY(find_source(x, from, source));
    char* const argv[] = {word("sh"),
                          word("-c"),
                          word(script),
                          word("grove"),
                          word(tool[from->backend]),
                          source,
                          word(image || files ? "" : x->base_commit),
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

gr_sandbox_tree gr_swe_tree_view(int backend, const char* path, const char* const* read)
{
    bool image = backend != GR_SWE_SANDBOX;
    return (gr_sandbox_tree){
        .tree = path, .at = image ? "/" : "/testbed", .work = "/testbed", .read = read};
}
