/* worlds.c - the list of worlds; a new one adds its line. */
#include <string.h>

#include "envs/keydoor.h"
#include "envs/remote.h"
#include "envs/swebench/swebench.h"

const gr_world* const gr_worlds[] = {
    &gr_world_frozenlake, &gr_world_keydoor, &gr_world_remote, &gr_world_swebench, NULL,
};

const gr_world* gr_world_find(const char* name)
{
    for (int i = 0; gr_worlds[i] != NULL; i++) {
        if (strcmp(gr_worlds[i]->name, name) == 0) return gr_worlds[i];
    }
    return NULL;
}
