/* Stands in for pyxis in the tests: it starts no container, but refuses what pyxis 0.24 refuses and gives each task the
   environment that pyxis gives it (compared with the real one on 2026-11-22, docs/pyxis.md). Each task sees what it was
   asked for as STUB_*. What it cannot do: another root. PATH stays the job's, where pyxis gives the image's.
   gcc -shared -fPIC -o stub.so container_stub.c; plugstack.conf: required /path/stub.so [env=NAME=VALUE ...] [cleanup=S]
   env=      a variable of the image: it wins over the job's own unless --container-env names it
   cleanup=  seconds that removing the unpacked image takes after the last task: the starter returns only then */
#include <ctype.h>
#include <slurm/slurm_errno.h>
#include <slurm/spank.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

SPANK_PLUGIN(container_stub, 1);

enum { IMAGE, MOUNTS, WORKDIR, NAME, SAVE, ENV, HOME, NO_HOME, REMAP, NO_REMAP, ENTRY, NO_ENTRY, WRITABLE, READONLY, COUNT };

static struct {
	const char *name;
	int has_value;
	int excludes; /* the option that says the opposite, or itself */
	char *value;
} options[COUNT] = {
	[IMAGE] = {"container-image", 1, IMAGE, NULL},
	[MOUNTS] = {"container-mounts", 1, MOUNTS, NULL},
	[WORKDIR] = {"container-workdir", 1, WORKDIR, NULL},
	[NAME] = {"container-name", 1, NAME, NULL},
	[SAVE] = {"container-save", 1, SAVE, NULL},
	[ENV] = {"container-env", 1, ENV, NULL},
	[HOME] = {"container-mount-home", 0, NO_HOME, NULL},
	[NO_HOME] = {"no-container-mount-home", 0, HOME, NULL},
	[REMAP] = {"container-remap-root", 0, NO_REMAP, NULL},
	[NO_REMAP] = {"no-container-remap-root", 0, REMAP, NULL},
	[ENTRY] = {"container-entrypoint", 0, NO_ENTRY, NULL},
	[NO_ENTRY] = {"no-container-entrypoint", 0, ENTRY, NULL},
	[WRITABLE] = {"container-writable", 0, READONLY, NULL},
	[READONLY] = {"container-readonly", 0, WRITABLE, NULL},
};

/* Whether a list with commas has this word. */
static int lists(const char *list, const char *word, size_t length)
{
	while (list && *list) {
		size_t end = strcspn(list, ",");
		if (end == length && strncmp(list, word, length) == 0)
			return 1;
		list += end + (list[end] == ',');
	}
	return 0;
}

static int has_empty_element(const char *list)
{
	return *list == '\0' || *list == ',' || strstr(list, ",,") || list[strlen(list) - 1] == ',';
}

static int accept_option(int number, const char *value, int remote)
{
	const char *given = value ? value : "yes";
	if (options[options[number].excludes].value && options[number].excludes != number) {
		slurm_error("stub: --%s and --%s contradict each other", options[number].name,
			    options[options[number].excludes].name);
		return -1;
	}
	if ((number == ENV || number == MOUNTS) && has_empty_element(given)) {
		slurm_error("stub: --%s has an empty element: '%s'", options[number].name, given);
		return -1;
	}
	if (options[number].value && strcmp(options[number].value, given) && number != MOUNTS && number != ENV) {
		slurm_error("stub: --%s is given twice", options[number].name);
		return -1;
	}
	options[number].value = strdup(given);
	return 0;
}

int slurm_spank_init(spank_t spank, int argc, char **argv)
{
	for (int i = 0; i < COUNT; i++) {
		struct spank_option option = {(char *)options[i].name, options[i].has_value ? "VALUE" : NULL,
					      "[stub] accepted, nothing is started", options[i].has_value, i, accept_option};
		if (spank_option_register(spank, &option) != ESPANK_SUCCESS)
			return -1;
	}
	return 0;
}

/* A path that must be there on the node, cut off at a separator; pyxis ends the task where it is not. */
static int is_there(const char *what, const char *path, size_t length)
{
	char name[4096];
	snprintf(name, sizeof(name), "%.*s", (int)length, path);
	if (name[0] == '/' && access(name, F_OK)) {
		slurm_error("stub: --%s: there is no %s on this node", what, name);
		return 0;
	}
	return 1;
}

static int check_places(void)
{
	const char *image = options[IMAGE].value, *mount = options[MOUNTS].value, *folder = options[WORKDIR].value;
	if (!is_there("container-image", image, strlen(image)))
		return -1;
	while (mount && *mount) {
		size_t end = strcspn(mount, ",");
		if (!is_there("container-mounts", mount, strcspn(mount, ":,")))
			return -1;
		mount += end + (mount[end] == ',');
	}
	if (folder && chdir(folder)) {
		slurm_error("stub: --container-workdir: there is no %s", folder);
		return -1;
	}
	return 0;
}

static void copy_variable(spank_t spank, const char *from, const char *to)
{
	char value[256];
	if (spank_getenv(spank, from, value, sizeof(value)) == ESPANK_SUCCESS)
		spank_setenv(spank, to, value, 1);
}

static void set_environment(spank_t spank, int argc, char **argv)
{
	static const char *locale[] = {"LANG", "LANGUAGE", "LC_ALL"};
	const char *kept = options[ENV].value;
	char value[256];
	for (int i = 0; i < 3; i++)
		if (!lists(kept, locale[i], strlen(locale[i])))
			spank_unsetenv(spank, locale[i]);
	for (int i = 0; i < argc; i++) {
		char *name = argv[i] + 4, *end = strchr(name, '=');
		if (strncmp(argv[i], "env=", 4) || !end)
			continue;
		char *word = strndup(name, end - name);
		spank_setenv(spank, word, end + 1, !lists(kept, word, end - name));
		free(word);
	}
	if (spank_getenv(spank, "PYTORCH_VERSION", value, sizeof(value)) == ESPANK_SUCCESS) { /* NGC's PyTorch images */
		copy_variable(spank, "SLURM_PROCID", "RANK");
		copy_variable(spank, "SLURM_LOCALID", "LOCAL_RANK");
	}
}

int slurm_spank_task_init(spank_t spank, int argc, char **argv)
{
	if (!options[IMAGE].value)
		return 0;
	if (check_places())
		return -1;
	set_environment(spank, argc, argv);
	for (int i = 0; i < COUNT; i++) {
		char name[64] = "STUB_", *end = name + 5;
		if (!options[i].value)
			continue;
		for (const char *from = options[i].name; *from; from++)
			*end++ = *from == '-' ? '_' : toupper((unsigned char)*from);
		spank_setenv(spank, name, options[i].value, 1);
	}
	return 0;
}

int slurm_spank_task_exit(spank_t spank, int argc, char **argv)
{
	if (!options[IMAGE].value)
		return 0;
	for (int i = 0; i < argc; i++)
		if (!strncmp(argv[i], "cleanup=", 8))
			sleep(atoi(argv[i] + 8));
	return 0;
}
