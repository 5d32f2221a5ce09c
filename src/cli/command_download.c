/* offload-train download: gets a model and adapters of the Hugging Face hub, and files of rows, into their
 * caches. */
#include <stdio.h>
#include <stdlib.h>

#include "models/model.h"
#include "src/base/error.h"
#include "src/base/json.h"
#include "src/base/units.h"
#include "src/cli/command.h"
#include "src/data/mixture.h"
#include "src/hub/cache.h"
#include "src/hub/hub.h"

struct result {
    char model[PATH_MAX];   /* its folder, or the path of its file; "": none was named */
    char adapter[PATH_MAX]; /* its folder */
    int64_t received;       /* bytes of model and adapters */
    char (*data)[PATH_MAX];
};

static int check_online(void) {
    return ot_hub_is_offline() ? ot_fail(OT_E_IO, "download needs a network, and HF_HUB_OFFLINE is set: "
                                                  "unset it")
                               : 0;
}

/* The repository that --model names: org/name[@revision], or that of a preset. */
static int name_model(const char *model, struct ot_hub_name *name) {
    const struct ot_preset *preset = ot_preset_find(model);
    if (!preset)
        preset = ot_preset_spelled(model);
    if (ot_hub_name_parse(preset && preset->hub_id ? preset->hub_id : model, name))
        return 0;
    return ot_fail(OT_E_USAGE,
                   preset ? "%.200s: this preset has no published weights"
                          : "%.200s: no name of a model on the hub; give ORG/NAME, ORG/NAME@REVISION or a "
                            "preset (offload-train help models)",
                   model);
}

static int get_model(const char *model, struct result *result) {
    struct ot_hub_name name;
    if (ot_hub_is_remote(model))
        return ot_hub_get_remote(model, true, result->model);
    OT_TRY(name_model(model, &name));
    return ot_hub_get_model(&name, OT_HUB_WEIGHTS, &result->received, result->model);
}

static int get_adapter(const char *adapter, struct result *result) {
    struct ot_hub_name name;
    return ot_hub_name_parse(adapter, &name)
               ? ot_hub_get_model(&name, OT_HUB_ADAPTERS, &result->received, result->adapter)
               : ot_fail(OT_E_USAGE,
                         "--adapter %.200s: no name of adapters on the hub; give ORG/NAME or "
                         "ORG/NAME@REVISION",
                         adapter);
}

static int get_data(const struct ot_texts *data, struct result *result) {
    result->data = calloc((size_t)data->n + 1, sizeof *result->data);
    if (!result->data)
        return ot_fail(OT_E_BUDGET, "no memory for the paths of --data");
    for (int i = 0; i < data->n; i++) {
        struct ot_mixture_source source;
        OT_TRY(ot_mixture_parse(data->items[i], &source));
        int rc = ot_hub_is_remote(source.path)
                     ? ot_hub_get_remote(source.path, true, result->data[i])
                     : ot_fail(OT_E_USAGE, "--data %.200s: download takes hf://.. and https://.. alone",
                               source.path);
        free(source.path);
        OT_TRY(rc);
    }
    return 0;
}

static int print(const struct ot_options *o, const struct result *result) {
    if (!o->json) {
        if (o->model)
            printf("%s\n", result->model);
        if (o->adapter)
            printf("%s\n", result->adapter);
        for (int i = 0; i < o->data.n; i++)
            printf("%s\n", result->data[i]);
        return 0;
    }
    struct ot_json_writer w = {.indent = -1};
    ot_json_begin_object(&w, NULL);
    if (o->model)
        ot_json_put_text(&w, "model", result->model);
    if (o->adapter)
        ot_json_put_text(&w, "adapter", result->adapter);
    if (o->model || o->adapter)
        ot_json_put_int(&w, "bytes", result->received);
    ot_json_begin_array(&w, "data");
    for (int i = 0; i < o->data.n; i++)
        ot_json_put_text(&w, NULL, result->data[i]);
    ot_json_end_array(&w);
    ot_json_end_object(&w);
    return ot_json_print(&w);
}

int ot_command_download(const struct ot_options *options) {
    struct result result = {.model = "", .adapter = ""};
    int rc = check_online();
    if (rc == 0 && options->model)
        rc = get_model(options->model, &result);
    if (rc == 0 && options->adapter)
        rc = get_adapter(options->adapter, &result);
    if (rc == 0)
        rc = get_data(&options->data, &result);
    if (rc == 0)
        rc = print(options, &result);
    free(result.data);
    return rc;
}
