/* tree.h - base trees: the sources of an instance, without the history that holds its solution.
 * Level 1.
 *
 * From a repository, a base tree is a folder CACHE/ID of its files. From a container image it is a
 * folder CACHE/ID.image of a whole system, with the sources in its /testbed; the container's tool
 * only unpacks it, commands then run in sandboxes like all others. Either way the sources' .git
 * holds one commit without parents. A tree is made once, beside, then renamed; a file *.tree says
 * what it must hold, and one that differs is made again. */
#pragma once
#include "envs/sandbox/sandbox.h"
#include "envs/swebench/instance.h"

/* Values of swebench.backend: where base trees come from. */
enum { GR_SWE_SANDBOX, GR_SWE_PODMAN, GR_SWE_DOCKER, GR_SWE_APPTAINER };

typedef struct gr_swe_sources {
    int backend;
    /* A folder with repositories as owner__name, owner__name.git or owner__name.bundle; or a URL
     * (file, http, https) below which they are as owner/name, of which only the commit that is
     * needed is fetched. "": only instances with a tree of their own. */
    const char* mirrors;
    const char* images; /* registry and namespace of images that instances do not name */
    const char* cache;
    double fetch_s; /* until a tree must have been made */
} gr_swe_sources;

/* Is there what the tree would be made from? A URL or a registry is not asked. */
GR_MUST_CHECK gr_status gr_swe_check_source(const gr_swe_instance* x, const gr_swe_sources* from);
/* path has room for 4096 bytes. */
GR_MUST_CHECK gr_status gr_swe_tree(const gr_swe_instance* x, const gr_swe_sources* from,
                                    char* path);
/* How a sandbox shows it. */
gr_sandbox_tree gr_swe_tree_view(int backend, const char* path, const char* const* read);
