#include "model/map.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* The outside call at `place` is to fail, as if the disk had. */
static bool faulty(const char* place)
{
    if (!gr_fault(place)) return false;
    errno = EIO;
    return true;
}

gr_status gr_map_open(gr_map* m, const char* path)
{
    struct stat info;
    gr_status st = GR_OK;
    *m = (gr_map){0};
    int fd = faulty("weights.open") ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return GR_FAIL(GR_EIO, "%s: cannot open: %s", path, strerror(errno));
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        GR_GOTO(st, GR_FAIL(GR_EIO, "%s: not a regular file", path), out);
    }
    if (info.st_size == 0) GR_GOTO(st, GR_FAIL(GR_EDATA, "%s: the file is empty", path), out);
    void* bytes = faulty("weights.read")
                      ? MAP_FAILED
                      : mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (bytes == MAP_FAILED) {
        GR_GOTO(st, GR_FAIL(GR_EIO, "%s: cannot read: %s", path, strerror(errno)), out);
    }
    *m = (gr_map){bytes, info.st_size};
out:
    (void)close(fd);
    return st;
}

void gr_map_close(gr_map* m)
{
    if (m->bytes != NULL) (void)munmap((void*)(uintptr_t)m->bytes, (size_t)m->size);
    *m = (gr_map){0};
}
