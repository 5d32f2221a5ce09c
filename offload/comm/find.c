/* Finds a communicator by name or path, and checks that it fits this program. */
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "offload/comm/comm_state.h"
#include "offload/comm/tcp.h"
#include "src/base/text.h"

static const struct ot_comm_found built_in[] = {{&ot_comm_self, &ot_comm_self_transfers, NULL},
                                                {&ot_comm_tcp, &ot_comm_tcp_transfers, NULL}};

/* ---- the required members of a plugin ---- */

static int check_pair(const char *path, bool first, bool second, const char *names) {
    return first == second ? 0 : ot_fail(OT_E_INPUT, "%s: the plugin has only one of %s", path, names);
}

static const char *missing_hook(const struct ot_comm_v1 *api) {
    const struct {
        const char *name;
        bool is_there;
    } hooks[] = {
        {"open", api->open},
        {"close", api->close},
        {"all_gather", api->all_gather},
        {"all_to_all", api->all_to_all},
        {"broadcast", api->broadcast},
        {"poll_error", api->poll_error},
        {"abort", api->abort},
    };
    for (size_t i = 0; i < sizeof hooks / sizeof *hooks; i++)
        if (!hooks[i].is_there)
            return hooks[i].name;
    return NULL;
}

static int check_transfers(const struct ot_comm_transfers_v1 *transfers, const char *path) {
    if (transfers->abi != OT_COMM_TRANSFERS_V1 || transfers->struct_size != sizeof *transfers)
        return ot_fail(OT_E_INPUT,
                       "%s: the plugin's transfers have version %u and %u bytes, but should have version %d "
                       "and %zu bytes",
                       path, transfers->abi, transfers->struct_size, OT_COMM_TRANSFERS_V1, sizeof *transfers);
    if (!transfers->transfer)
        return ot_fail(OT_E_INPUT, "%s: the plugin lacks the function transfer", path);
    return 0;
}

int ot_comm_check(const struct ot_comm_found *found, const char *path) {
    const struct ot_comm_v1 *api = found->api;
    if (api->abi != OT_COMM_ABI_V1)
        return ot_fail(OT_E_INPUT, "%s: the plugin has version %u of the interface, but this program has %d",
                       path, api->abi, OT_COMM_ABI_V1);
    if (api->struct_size != sizeof *api)
        return ot_fail(OT_E_INPUT, "%s: the plugin's struct has %u bytes, but it should have %zu", path,
                       api->struct_size, sizeof *api);
    if (!api->name || !*api->name)
        return ot_fail(OT_E_INPUT, "%s: the plugin has no name", path);
    const char *missing = missing_hook(api);
    if (missing)
        return ot_fail(OT_E_INPUT, "%s: the plugin lacks the function %s", path, missing);
    if (!(api->capabilities & (OT_COMM_TAKES_HOST | OT_COMM_TAKES_DEVICE)))
        return ot_fail(OT_E_INPUT, "%s: the plugin takes neither host memory nor device memory", path);
    bool has_control = api->capabilities & OT_COMM_HAS_CONTROL;
    OT_TRY(check_pair(path, api->group_begin, api->group_end, "group_begin and group_end"));
    OT_TRY(check_pair(path, has_control, api->all_gather_host, "OT_COMM_HAS_CONTROL and all_gather_host"));
    OT_TRY(check_pair(path, has_control, api->barrier, "OT_COMM_HAS_CONTROL and barrier"));
    return found->transfers ? check_transfers(found->transfers, path) : 0;
}

static int load(const char *path, struct ot_comm_found *out) {
    out->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!out->library)
        return ot_fail(OT_E_INPUT, "cannot load the communicator plugin: %s", dlerror());
    out->api = dlsym(out->library, "ot_comm_plugin_v1");
    out->transfers = dlsym(out->library, "ot_comm_plugin_transfers_v1");
    int rc = out->api ? ot_comm_check(out, path)
                      : ot_fail(OT_E_INPUT,
                                "%s is not a communicator plugin: it has no symbol ot_comm_plugin_v1", path);
    if (rc < 0) {
        dlclose(out->library);
        *out = (struct ot_comm_found){0};
    }
    return rc;
}

/* ---- the folders of plugins ---- */

/* Loads the plugin if the folder [folder_bytes] has it. Returns 1 if so; otherwise notes the folder. */
static int try_folder(const char *folder, size_t folder_bytes, const char *name,
                      struct ot_string_builder *searched, struct ot_comm_found *out) {
    char *path;
    OT_TRY(ot_string_format(&path, "%.*s/libot-comm-%s.so", (int)folder_bytes, folder, name));
    int rc = 0;
    if (access(path, F_OK) == 0) {
        rc = load(path, out);
        rc = rc < 0 ? rc : 1;
    } else {
        ot_string_append_format(searched, "%s%.*s", searched->bytes ? ", " : "", (int)folder_bytes, folder);
    }
    free(path);
    return rc;
}

static int try_beside_program(const char *name, struct ot_string_builder *searched,
                              struct ot_comm_found *out) {
    char program[PATH_MAX];
    ssize_t bytes = readlink("/proc/self/exe", program, sizeof program);
    if (bytes <= 0 || bytes == sizeof program)
        return 0; /* /proc is not mounted */
    const char *slash = memrchr(program, '/', (size_t)bytes);
    return try_folder(program, slash ? (size_t)(slash - program) : 0, name, searched, out);
}

static int find_plugin(const char *name, const char *folders, struct ot_comm_found *out) {
    struct ot_string_builder searched = {0};
    int rc = try_beside_program(name, &searched, out);
    while (rc == 0 && folders && *folders) {
        size_t bytes = strcspn(folders, ":");
        if (bytes > 0)
            rc = try_folder(folders, bytes, name, &searched, out);
        folders += bytes + (folders[bytes] == ':');
    }
    if (rc == 0)
        rc = ot_fail(
            OT_E_INPUT,
            "there is no communicator '%s': self and tcp are built in, and libot-comm-%s.so is not in "
            "%s; OFFLOAD_TRAIN_PLUGINS may name more folders",
            name, name, searched.text ? searched.text : "any folder");
    free(searched.text);
    return rc < 0 ? rc : 0;
}

/* ---- the communicator of "auto" ---- */

struct seat {
    char host[64];
    char bus_id[OT_BUS_ID_BYTES];
};

/* True on all ranks if no two ranks use the same GPU. */
static int have_own_gpus(const struct ot_comm_config *config, int ranks, bool *out) {
    struct seat mine = {0}, *all = calloc((size_t)ranks, sizeof *all);
    if (!all)
        return ot_fail(OT_E_BUDGET, "no memory for the GPUs of %d ranks", ranks);
    *out = true;
    if (gethostname(mine.host, sizeof mine.host - 1) != 0)
        mine.host[0] = '\0';
    if (!ot_device_bus_id("cuda", config->device_index, mine.bus_id))
        mine.bus_id[0] = '\0';
    int rc = ot_world_all_gather(config->world, &mine, sizeof mine, all);
    for (int a = 0; rc == 0 && a < ranks; a++) {
        *out &= all[a].bus_id[0] != '\0';
        for (int b = 0; b < a; b++)
            *out &= memcmp(&all[a], &all[b], sizeof *all) != 0;
    }
    free(all);
    return rc;
}

static int choose(const struct ot_comm_config *config, const char **name) {
    int ranks = config->world ? ot_world_ranks(config->world)->ranks : 1;
    bool own_gpus = false;
    *name = "self";
    if (ranks == 1)
        return 0;
    if (config->device_index >= 0)
        OT_TRY(have_own_gpus(config, ranks, &own_gpus));
    *name = own_gpus ? "nccl" : "tcp";
    return 0;
}

int ot_comm_find(const struct ot_comm_config *config, struct ot_comm_found *out) {
    const char *name = config->name;
    *out = (struct ot_comm_found){0};
    if (!name || strcmp(name, "auto") == 0)
        OT_TRY(choose(config, &name));
    if (strchr(name, '/'))
        return load(name, out);
    for (size_t i = 0; i < sizeof built_in / sizeof *built_in; i++)
        if (strcmp(name, built_in[i].api->name) == 0) {
            *out = built_in[i];
            return 0;
        }
    return find_plugin(name, config->plugin_dirs, out);
}
