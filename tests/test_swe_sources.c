/* Base trees: from a folder, a mirror, a bundle or a URL, the same single commit; and what is said
 * where none can be made. */
#include "tests/disk.h"

#include <fnmatch.h>

#include "envs/swebench/tree.h"

static gr_swe_instance task; /* at the second of three commits, the last of which is the future */
static char base[41], future[41];
static char mirrors[100], cache[100];

/* What a command prints, without the end of its line. */
static void answer(char* out, size_t cap, const char* command)
{
    FILE* f = popen(command, "r");
    assert_non_null(f);
    size_t n = fread(out, 1, cap - 1, f);
    (void)pclose(f);
    out[n] = 0;
    out[strcspn(out, "\n")] = 0;
}

static void make_repository(void)
{
    char command[300];
    run_script("export GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b "
               "GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b; mkdir m cache web; "
               "git -c init.defaultBranch=main init -q m/o__folder; cd m/o__folder; "
               "for i in 1 2 3; do echo $i >file; echo 'left out export-ignore' >.gitattributes; "
               "echo $i >left; git add -A; git commit -qm $i; done; cd ../..; "
               "git clone -q --bare m/o__folder m/o__bare.git; "
               "git -C m/o__folder bundle create -q ../o__bundle.bundle main; "
               "mkdir web/o; git clone -q --bare m/o__folder web/o/url; "
               "git -C web/o/url update-server-info");
    (void)snprintf(mirrors, sizeof mirrors, "%s/m", scratch);
    (void)snprintf(cache, sizeof cache, "%s/cache", scratch);
    (void)snprintf(command, sizeof command, "git -C %s/o__folder rev-parse HEAD~1", mirrors);
    answer(base, sizeof base, command);
    (void)snprintf(command, sizeof command, "git -C %s/o__folder rev-parse HEAD", mirrors);
    answer(future, sizeof future, command);
}

static void make_task(const char* id, const char* repo, const char* commit)
{
    static char texts[3][64], none[1];
    const char* from[] = {id, repo, commit};
    for (int i = 0; i < 3; i++) (void)snprintf(texts[i], sizeof texts[i], "%s", from[i]);
    task = (gr_swe_instance){
        .id = texts[0], .repo = texts[1], .base_commit = texts[2], .gold = none, .tree = none};
}

static gr_status make(const char* from, double fetch_s, char path[4096])
{
    const gr_swe_sources sources = {.mirrors = from, .cache = cache, .fetch_s = fetch_s};
    return gr_swe_tree(&task, &sources, path);
}

/* A file server of the scratch's `web`, which knows nothing of git; its port into *port. */
static pid_t serve(int* port)
{
    char command[300], text[16] = "";
    (void)snprintf(command, sizeof command,
                   "cd %s/web && exec python3 -S -E -c 'import http.server as h, sys\n"
                   "s = h.HTTPServer((\"127.0.0.1\", 0), h.SimpleHTTPRequestHandler)\n"
                   "open(\"../port\", \"w\").write(str(s.server_port) + \"\\n\")\n"
                   "s.serve_forever()' >/dev/null 2>&1",
                   scratch);
    pid_t pid = fork();
    if (pid == 0) {
        execl("/bin/sh", "sh", "-c", command, (char*)NULL);
        _exit(1);
    }
    for (int i = 0; i < 3000 && strchr(text, '\n') == NULL; i++) {
        char* got = access(scratch, R_OK) == 0 ? slurp(scratch, "port", NULL) : NULL;
        if (got != NULL) (void)snprintf(text, sizeof text, "%s", got);
        free(got);
        usleep(10000);
    }
    *port = atoi(text);
    return pid;
}

static void every_source_gives_the_same_commit(void** state)
{
    (void)state;
    char url[2][200], path[4096], command[5000], commit[41], first[41] = "";
    int port = 0;
    pid_t server = serve(&port);
    assert_true(port > 0);
    (void)snprintf(url[0], sizeof url[0], "file://%s/web/", scratch);
    (void)snprintf(url[1], sizeof url[1], "http://127.0.0.1:%d", port);
    const struct {
        const char *id, *repo, *from;
    } source[] = {{"a-1", "o/folder", mirrors},
                  {"b-1", "o/bare", mirrors},
                  {"c-1", "o/bundle", mirrors},
                  {"d-1", "o/url", url[0]},
                  {"e-1", "o/url", url[1]}};
    for (int i = 0; i < GR_COUNT(source); i++) {
        make_task(source[i].id, source[i].repo, base);
        ASSERT_OK(make(source[i].from, 300, path));
        (void)snprintf(command, sizeof command, "git -C %s rev-parse HEAD", path);
        answer(commit, sizeof commit, command);
        assert_int_equal(strlen(commit), 40);
        if (i == 0) (void)snprintf(first, sizeof first, "%s", commit);
        assert_string_equal(commit, first);
        run_script("test \"$(cat %s/file %s/left)\" = '2\n2'", path, path);
        run_script("test $(git -C %s rev-list --all --count) = 1; ! git -C %s cat-file -e %s 2>&1",
                   path, path, future);
    }
    (void)kill(server, SIGKILL);
    (void)waitpid(server, NULL, 0);
}

static void expect_error(const char* from, double fetch_s, const char* pattern)
{
    char path[4096];
    assert_int_equal(make(from, fetch_s, path), GR_EIO);
    if (fnmatch(pattern, gr_last_error_text(), 0) != 0) {
        fail_msg("`%s` instead of `%s`", gr_last_error_text(), pattern);
    }
    run_script(
        "test -z \"$(ls -d cache/x-1.?????? cache/x-1 2>/dev/null)\""); /* nothing half made */
}

static void what_cannot_be_had_is_said_in_one_line(void** state)
{
    (void)state;
    char url[200], old[2000], path[2200];
    make_task("x-1", "o/url", "0123456789012345678901234567890123456789");
    (void)snprintf(url, sizeof url, "file://%s/web", scratch);
    expect_error(url, 300,
                 "x-1: cannot make the tree from file://*/web/o/url: fatal: it has no "
                 "commit 0123456789012345678901234567890123456789");
    task.repo = (char[]){"o/bundle"};
    expect_error(mirrors, 300, "*/o__bundle.bundle: fatal: it has no commit 01234*");
    task.repo = (char[]){"o/folder"};
    expect_error(mirrors, 300, "*/o__folder: fatal: it has no commit 01234*");
    task.repo = (char[]){"o/none"};
    expect_error(mirrors, 300, "*: no o__none, .git or .bundle there, which x-1 needs");
    expect_error(url, 300, "*/web/o/none: fatal: '*/web/o/none' does not appear to be a git*");
    expect_error("http://127.0.0.1:1", 300, "*/o/none: fatal: unable to access *127.0.0.1*");
    expect_error("ssh://127.0.0.1", 300, "*/o/none: fatal: transport 'ssh' not allowed");
    (void)snprintf(old, sizeof old, "%s", getenv("PATH"));
    (void)snprintf(path, sizeof path, "%s/bin:%s", scratch, old);
    run_script("mkdir bin; printf '#!/bin/sh\\nsleep 1000\\n' >bin/git; chmod 755 bin/git");
    (void)setenv("PATH", path, 1);
    expect_error(url, 0.2, "x-1: cannot make the tree from *: not done within 0.2 s");
    (void)setenv("PATH", old, 1);
}

/* A base tree is made again when it was changed, from a folder of its own, too. */
static void base_trees_are_made_once_and_checked(void** state)
{
    (void)state;
    char path[4096], tree[100];
    make_task("own-1", "o/own", "");
    run_script("mkdir own; echo 1 >own/a");
    (void)snprintf(tree, sizeof tree, "%s/own", scratch);
    task.tree = tree;
    ASSERT_OK(make("", 300, path));
    run_script("test $(git -C %s rev-list --all --count) = 1; touch -d 2001-01-01 %s/a", path,
               path);
    ASSERT_OK(make("", 300, path));
    run_script("test $(date -r %s/a +%%Y) = 2001; echo 2 >%s/a", path, path);
    ASSERT_OK(make("", 300, path));
    run_script("cmp -s %s/a own/a", path);
    task.tree = (char[]){""};
    assert_int_equal(make("", 300, path), GR_EARG);
    assert_non_null(strstr(gr_last_error_text(), "swebench.mirrors: empty, but own-1 needs o/own"));
    (void)snprintf(cache, sizeof cache, "/no/cache");
    assert_int_equal(make("", 300, path), GR_EIO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_source_gives_the_same_commit),
        cmocka_unit_test(what_cannot_be_had_is_said_in_one_line),
        cmocka_unit_test(base_trees_are_made_once_and_checked),
    };
    (void)setenv("no_proxy", "127.0.0.1", 1);
    if (make_scratch(NULL) != 0) return 1;
    make_repository();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    (void)remove_scratch(NULL);
    return failed;
}
