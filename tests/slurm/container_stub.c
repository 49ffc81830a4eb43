/* Stands in for pyxis in the tests: accepts its options and shows each task what it was given as STUB_*. It starts no
   container. gcc -shared -fPIC -o stub.so container_stub.c; plugstack.conf: required /path/stub.so */
#include <ctype.h>
#include <slurm/spank.h>
#include <stdlib.h>
#include <string.h>

SPANK_PLUGIN(container_stub, 1);

static struct {
	const char *name;
	int has_value;
	char *value;
} options[] = {
	{"container-image", 1, NULL},	       {"container-mounts", 1, NULL},	      {"container-workdir", 1, NULL},
	{"container-name", 1, NULL},	       {"container-save", 1, NULL},	      {"container-env", 1, NULL},
	{"container-mount-home", 0, NULL},     {"no-container-mount-home", 0, NULL}, {"container-remap-root", 0, NULL},
	{"no-container-remap-root", 0, NULL},  {"container-entrypoint", 0, NULL},    {"no-container-entrypoint", 0, NULL},
	{"container-writable", 0, NULL},       {"container-readonly", 0, NULL},
};
enum { COUNT = sizeof(options) / sizeof(options[0]) };

static int accept_option(int number, const char *value, int remote)
{
	options[number].value = strdup(value ? value : "yes");
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

int slurm_spank_task_init(spank_t spank, int argc, char **argv)
{
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
