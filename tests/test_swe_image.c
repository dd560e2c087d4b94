/* Base trees from container images, by the command lines of podman, docker and apptainer: programs
 * of that name that answer like the real ones, and podman itself where it runs. */
#include "tests/swe.h"

#include <fnmatch.h>

#include "envs/swebench/swebench.h"
#include "host/json.h"

#define COMMIT "0123456789abcdef0123456789abcdef01234567"

static char usual_path[2000], fake_path[2200];
static gr_swe_set set; /* one instance, of an image */

/* A system without programs of its own, which sees the host's /usr; in its /testbed a repository
 * with a future, a tracked file that it ignores, something it has built, and a trap. */
static void make_image(void)
{
    char here[1000];
    assert_non_null(getcwd(here, sizeof here));
    run_script("export GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b "
               "GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b; "
               "mkdir -p s/usr s/etc s/root s/tmp s/dev s/opt/miniconda3/bin; chmod 1777 s/tmp; "
               "for f in bin sbin lib lib64; do ln -s usr/$f s/$f; done; "
               "echo 'export ENTERED=$1' >s/opt/miniconda3/bin/activate; : >s/etc/hosts; "
               "cp -R %s/envs/swe_tiny/intervals/repo s/testbed; cd s/testbed; git init -q; "
               "echo '*.built' >.gitignore; echo 1 >kept.built; git add -A; git add -f kept.built; "
               "git commit -qm base; echo '# mended' >>intervals.py; git commit -qam future; "
               "git reset -q --hard HEAD~1; echo 2 >made.built; "
               "printf '#!/bin/sh\\ntouch %s/trapped\\n' >.git/trap; chmod 755 .git/trap; "
               "git config core.fsmonitor .git/trap; cd ../..; tar -cf image.tar -C s .; "
               "rm -rf s/testbed; tar -cf bare.tar -C s .",
               here, scratch);
}

static const char tool[] =
    "#!/bin/sh\n"
    "cd ${0%/*}/..; echo \"${0##*/} $*\" >>calls; tar=image.tar\n"
    "case $* in *bare*) tar=bare.tar;; esac\n"
    "case $* in\n"
    "  'image inspect localhost/'*) ;;\n"
    "  'image inspect '*) exit 1;;\n"
    "  'pull -q '*missing*) echo \"Error: initializing source docker://$3: manifest unknown\" >&2; "
    "exit 125;;\n"
    "  'pull -q '*slow*) sleep 1000;;\n"
    "  'pull -q '*) echo sha256:1;;\n"
    "  create*bare*true) echo bare1;;\n"
    "  create*true) echo box1;;\n"
    "  'export -o '*) cp $tar $3;;\n"
    "  'rm -f '*) ;;\n"
    "  build*missing*) echo 'INFO:    Starting build...' >&2\n"
    "    echo 'FATAL:   While performing build: manifest unknown' >&2; exit 255;;\n"
    "  'build --fix-perms --sandbox '*' docker://'*) mkdir $4 && tar -xf $tar -C $4;;\n"
    "  *) echo \"Error: unrecognized command $*\" >&2; exit 125;;\n"
    "esac\n";

static void make_tools(void)
{
    char path[100];
    run_script("mkdir bin cache");
    (void)snprintf(path, sizeof path, "%s/bin/podman", scratch);
    FILE* f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(tool, f) >= 0 && fclose(f) == 0);
    run_script("chmod 755 bin/podman; cp bin/podman bin/docker; cp bin/podman bin/apptainer");
    (void)snprintf(usual_path, sizeof usual_path, "%s", getenv("PATH"));
    (void)snprintf(fake_path, sizeof fake_path, "%s/bin:%s", scratch, usual_path);
}

static void put_names(FILE* f, const char* key, const gr_swe_names* names)
{
    fprintf(f, ",\"%s\":[", key);
    for (int i = 0; i < names->n; i++) {
        if (i > 0) fputc(',', f);
        gr_json_text(f, names->name[i], strlen(names->name[i]));
    }
    fputc(']', f);
}

/* The tiny task whose sources are in the image, as a published row would have it. */
static void write_instance(void)
{
    char path[100];
    ASSERT_OK(gr_swe_read(&tiny, "envs/swe_tiny"));
    const gr_swe_instance* x = &tiny.instance[find_tiny("tiny__intervals-1")];
    const struct {
        const char *key, *text;
    } field[] = {{"problem_statement", x->problem}, {"patch", x->gold},
                 {"test_patch", x->test_patch},     {"log_parser", x->log_parser},
                 {"test_cmd", x->test_command},     {"image", "localhost/tiny:1"}};
    (void)snprintf(path, sizeof path, "%s/task.jsonl", scratch);
    FILE* f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "{\"instance_id\":\"Tiny__Intervals-1\",\"repo\":\"tiny/intervals\","
               "\"base_commit\":\"" COMMIT "\"");
    for (int i = 0; i < GR_COUNT(field); i++) {
        fprintf(f, ",\"%s\":", field[i].key);
        gr_json_text(f, field[i].text, strlen(field[i].text));
    }
    put_names(f, "FAIL_TO_PASS", &x->fail_to_pass);
    put_names(f, "PASS_TO_PASS", &x->pass_to_pass);
    fputs("}\n", f);
    assert_int_equal(fclose(f), 0);
    ASSERT_OK(gr_swe_read(&set, path));
}

static gr_status make(int backend, const char* image, double fetch_s, char path[4096])
{
    char cache[100], name[200];
    (void)snprintf(cache, sizeof cache, "%s/cache", scratch);
    (void)snprintf(name, sizeof name, "%s", image);
    const gr_swe_sources from = {.backend = backend,
                                 .mirrors = "",
                                 .images = "example.org/space",
                                 .cache = cache,
                                 .fetch_s = fetch_s};
    gr_swe_instance x = set.instance[0];
    x.image = name;
    return gr_swe_tree(&x, &from, path);
}

static void check_tree(const char* path)
{
    run_script(
        "cd %s; test -L bin; test -x opt; test \"$(cat etc/hosts)\" = '127.0.0.1 localhost'; "
        "cd testbed; test $(git rev-list --all --count) = 1; test -z \"$(git status "
        "--porcelain)\"; "
        "git ls-files --error-unmatch kept.built intervals.py >/dev/null; test -e made.built; "
        "! grep -q mended intervals.py; test -z \"$(git ls-files made.built)\"; "
        "test ! -e %s/trapped",
        path, scratch);
}

static void every_tool_gives_the_same_tree(void** state)
{
    (void)state;
    char path[4096], *calls;
    for (int backend = GR_SWE_PODMAN; backend <= GR_SWE_APPTAINER; backend++) {
        run_script("rm -rf cache/* calls");
        ASSERT_OK(make(backend, "", 300, path));
        check_tree(path);
        calls = slurp(scratch, "calls", NULL);
#if defined(__aarch64__)
        assert_non_null(
            strstr(calls, "example.org/space/sweb.eval.arm64.tiny_1776_intervals-1:latest"));
#else
        assert_non_null(
            strstr(calls, "example.org/space/sweb.eval.x86_64.tiny_1776_intervals-1:latest"));
#endif
        if (backend != GR_SWE_APPTAINER) assert_non_null(strstr(calls, " rm -f box1\n"));
        free(calls);
        run_script("rm calls; test $(ls cache | wc -l) = 2");
        ASSERT_OK(make(backend, "", 300, path)); /* it is there */
        run_script("test ! -e calls");
        ASSERT_OK(make(backend, "localhost/other:1", 300, path)); /* another image's is not */
        calls = slurp(scratch, "calls", NULL);
        assert_non_null(calls);
        assert_null(strstr(calls, "pull")); /* an image that the tool has is not fetched */
        free(calls);
    }
}

static void expect_error(int backend, const char* image, double fetch_s, const char* pattern)
{
    char path[4096];
    run_script("rm -rf cache/* calls");
    assert_int_equal(make(backend, image, fetch_s, path), GR_EIO);
    if (fnmatch(pattern, gr_last_error_text(), 0) != 0) {
        fail_msg("`%s` instead of `%s`", gr_last_error_text(), pattern);
    }
    run_script("test -z \"$(ls cache | grep -v 'log$')\"");
}

static void what_goes_wrong_is_said_in_one_line(void** state)
{
    (void)state;
    expect_error(GR_SWE_PODMAN, "r/missing:1", 300,
                 "Tiny__Intervals-1: cannot make the tree from r/missing:1: Error: initializing "
                 "source docker://r/missing:1: manifest unknown");
    expect_error(GR_SWE_APPTAINER, "r/missing:1", 300,
                 "*r/missing:1: FATAL:   While performing build: manifest unknown");
    expect_error(GR_SWE_DOCKER, "r/slow:1", 0.3, "*r/slow:1: not done within 0.3 s");
    expect_error(GR_SWE_DOCKER, "r/bare:1", 300, "*: fatal: the image has no folder /testbed");
    char* calls = slurp(scratch, "calls", NULL);
    assert_non_null(strstr(calls, "docker rm -f bare1\n")); /* also of what failed */
    free(calls);
    run_script("mv bin/apptainer bin/hidden");
    expect_error(GR_SWE_APPTAINER, "r/x:1", 300, "*: fatal: no program apptainer in PATH");
    run_script("mv bin/hidden bin/apptainer");
}

/* ---- an episode in an image -------------------------------------------------------------- */

static gr_envs* envs;

static const gr_obs* sh(int h, const char* command)
{
    static char action[GR_ACTION_MAX + 1];
    gr_env_reply r;
    int n = snprintf(action, sizeof action, "```bash\n%s\n```\n", command);
    gr_envs_step(envs, h, action, n, 0);
    assert_true(gr_envs_poll(envs, &r, true));
    assert_int_equal(r.error, GR_ENV_OK);
    return r.obs;
}

static gr_status open_world(int backend, const char* instances, const char* mirrors)
{
    static gr_swe_settings s;
    s = tiny_settings("cache");
    s.backend = backend;
    (void)snprintf(s.instances, sizeof s.instances, "%s", instances);
    (void)snprintf(s.mirrors, sizeof s.mirrors, "%s", mirrors);
    (void)snprintf(s.read, sizeof s.read, "/usr");
    (void)snprintf(s.setup, sizeof s.setup, "export MORE=more");
    return gr_envs_open(&envs, &gr_world_swebench, &s, 4);
}

static void an_episode_is_played_in_an_image(void** state)
{
    (void)state;
    char path[100];
    static char mend[GR_ACTION_MAX];
    (void)snprintf(path, sizeof path, "%s/task.jsonl", scratch);
    if (open_world(GR_SWE_PODMAN, path, "") != GR_OK) {
        printf("SKIPPED: %s\n", gr_last_error_text());
        return;
    }
    gr_env_reply r;
    int h = gr_envs_reset(envs, GR_TRAIN, 0, 1, 0);
    assert_true(gr_envs_poll(envs, &r, true) && r.error == GR_ENV_OK);
    uint64_t start = r.obs->hash;
    const gr_obs* o = sh(h, "pwd; echo $ENTERED $MORE; ls /; cat /etc/hosts; id -u");
    assert_string_equal(o->text,
                        "exit status 0\n/testbed\ntestbed more\nbin\ndev\netc\nlib\nlib64\n"
                        "opt\nproc\nroot\nsbin\ntestbed\ntmp\nusr\n127.0.0.1 localhost\n0\n");
    o = sh(h, "echo x >/etc/motd; echo x >/tmp/x; echo x >y.built");
    assert_true(o->hash != start); /* a file that git ignores is a file */
    o = sh(h, "cat /etc/motd /tmp/x; rm y.built");
    assert_string_equal(o->text, "exit status 0\nx\nx\n");
    assert_true(o->hash == start); /* beside the sources, nothing counts */
    int other = gr_envs_fork(envs, h, 1);
    (void)snprintf(mend, sizeof mend, "git apply - <<'END'\n%sEND", set.instance[0].gold);
    o = sh(h, mend);
    assert_true(o->signal[2] == 1); /* edited */
    o = sh(other, "cat /etc/motd; git status --short");
    assert_string_equal(o->text, "exit status 0\nx\n");
    o = sh(h, "submit");
    assert_true(o->success && o->reward == 1);
    o = sh(other, "submit");
    assert_true(!o->success && o->end == GR_END_TERMINAL);
    gr_envs_free(envs, h);
    gr_envs_free(envs, other);
    gr_envs_close(envs);
    gr_sandbox_stop();
}

static void settings_without_effect_are_refused(void** state)
{
    (void)state;
    char path[100];
    (void)snprintf(path, sizeof path, "%s/task.jsonl", scratch);
    assert_int_equal(open_world(GR_SWE_DOCKER, path, "/mirrors"), GR_EARG);
    assert_non_null(strstr(gr_last_error_text(), "swebench.mirrors has no effect"));
    assert_int_equal(open_world(GR_SWE_DOCKER, "envs/swe_tiny", ""), GR_EDATA);
    assert_non_null(strstr(gr_last_error_text(), "brings its own sources, but"));
}

/* ---- podman itself ----------------------------------------------------------------------- */

static void podman_itself_gives_that_tree(void** state)
{
    (void)state;
    char conf[100], path[4096];
    (void)snprintf(conf, sizeof conf, "%s/storage.conf", scratch);
    run_script(
        "printf '[storage]\\ndriver = \"vfs\"\\ngraphroot = \"%s/g\"\\nrunroot = \"%s/r\"\\n' "
        ">storage.conf; rm -rf cache/*",
        scratch, scratch);
    (void)setenv("PATH", usual_path, 1);
    (void)setenv("CONTAINERS_STORAGE_CONF", conf, 1);
    char command[300];
    (void)snprintf(command, sizeof command,
                   "podman import -q %s/image.tar localhost/grove-test:1 >/dev/null 2>&1", scratch);
    if (system(command) == 0) {
        ASSERT_OK(make(GR_SWE_PODMAN, "localhost/grove-test:1", 300, path));
        check_tree(path);
        run_script("test -z \"$(podman ps -aq)\"");
        assert_int_equal(make(GR_SWE_PODMAN, "localhost:1/none:1", 300, path), GR_EIO);
        assert_int_equal(fnmatch("*: cannot make the tree from localhost:1/none:1: Error: *",
                                 gr_last_error_text(), 0),
                         0);
    } else {
        puts("SKIPPED: no podman that can import an image");
    }
    (void)setenv("PATH", fake_path, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_tool_gives_the_same_tree),
        cmocka_unit_test(what_goes_wrong_is_said_in_one_line),
        cmocka_unit_test(an_episode_is_played_in_an_image),
        cmocka_unit_test(settings_without_effect_are_refused),
        cmocka_unit_test(podman_itself_gives_that_tree),
    };
    if (gr_sandbox_prestart() != GR_OK || make_scratch(NULL) != 0) return 1;
    make_image();
    make_tools();
    write_instance();
    (void)setenv("PATH", fake_path, 1);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    gr_swe_set_free(&set);
    gr_swe_set_free(&tiny);
    (void)remove_scratch(NULL);
    return failed;
}
