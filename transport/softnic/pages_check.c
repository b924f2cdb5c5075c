/* SPDX-License-Identifier: MIT */
/* Which pages may be replaced by shared ones: what /proc/self/smaps says of them. */
#include "transport/softnic/pages.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A mapping: its line, and the flags that come at the end of its paragraph. */
struct mapping {
    uint64_t low, high, inode;
    char rights[8], path[256];
};

static bool parse(const char *line, struct mapping *m)
{
    int path_at = 0;
    if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %7s %*x %*x:%*x %" SCNu64 " %n", &m->low, &m->high,
               m->rights, &m->inode, &path_at) < 4)
        return false;
    snprintf(m->path, sizeof m->path, "%s", path_at > 0 ? line + path_at : "");
    m->path[strcspn(m->path, "\n")] = '\0';
    return true;
}

/* Only these, which plain private memory has (proc(5), VmFlags). Memory that is locked, not to be
 * inherited, watched by a userfaultfd, of huge pages or that grows like a stack has others. */
static bool plain_flags(const char *line)
{
    static const char allowed[] = " rd wr mr mw me ac sd nr hg nh ";
    char flag[8];
    int used;
    for (line += strlen("VmFlags:"); sscanf(line, "%3s%n", flag, &used) == 1; line += used) {
        char wanted[12];
        snprintf(wanted, sizeof wanted, " %s ", flag);
        if (strstr(allowed, wanted) == NULL)
            return false;
    }
    return true;
}

static bool plain(const struct mapping *m)
{
    uint64_t frame = (uint64_t)(uintptr_t)__builtin_frame_address(0);
    return strcmp(m->rights, "rw-p") == 0 && m->inode == 0 &&
           (m->path[0] == '\0' || strcmp(m->path, "[heap]") == 0 ||
            strncmp(m->path, "[anon:", 6) == 0) &&
           (frame < m->low || frame >= m->high);
}

bool pages_plain(uint64_t start, uint64_t end)
{
    char line[4608];
    struct mapping m = {0};
    bool inside = false;
    uint64_t at = start;
    FILE *smaps = fopen("/proc/self/smaps", "re");
    if (smaps == NULL)
        return false;
    while (at < end && fgets(line, sizeof line, smaps) != NULL) {
        if (strncmp(line, "VmFlags:", 8) == 0) {
            if (inside && !plain_flags(line))
                break;
            if (inside)
                at = m.high;
            inside = false;
        } else if (parse(line, &m) && m.high > at) {
            if (m.low > at || !plain(&m))
                break;
            inside = true;
        }
    }
    fclose(smaps);
    return at >= end;
}

bool pages_made_here(uint64_t start, uint64_t end)
{
    char line[4608];
    struct mapping m;
    uint64_t at = start;
    FILE *maps = fopen("/proc/self/maps", "re");
    if (maps == NULL)
        return false;
    while (at < end && fgets(line, sizeof line, maps) != NULL) {
        if (!parse(line, &m) || m.high <= at)
            continue;
        if (m.low > at || strcmp(m.path, PAGES_PATH) != 0 || strcmp(m.rights, "rw-s") != 0)
            break;
        at = m.high;
    }
    fclose(maps);
    return at >= end;
}

bool pages_single_thread(void)
{
    char line[256];
    long threads = 0;
    FILE *status = fopen("/proc/self/status", "re");
    if (status == NULL)
        return false;
    while (threads == 0 && fgets(line, sizeof line, status) != NULL) {
        if (strncmp(line, "Threads:", 8) == 0)
            threads = strtol(line + 8, NULL, 10);
    }
    fclose(status);
    return threads == 1;
}
