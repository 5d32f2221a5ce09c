/* Stands in for libudev, which has no archive that could be linked: hwloc's archive asks it for the names of
 * disks and does without where it is told that there is none. Nothing here asks hwloc for disks (disk.h).
 * Linked with hwloc's archive alone. */
#include <stddef.h>

void *udev_new(void);
void *udev_unref(void *udev);
void *udev_device_new_from_subsystem_sysname(void *udev, const char *subsystem, const char *name);
const char *udev_device_get_property_value(void *device, const char *key);
void *udev_device_unref(void *device);

void *udev_new(void) {
    return NULL;
}

void *udev_unref(void *udev) {
    (void)udev;
    return NULL;
}

void *udev_device_new_from_subsystem_sysname(void *udev, const char *subsystem, const char *name) {
    (void)udev, (void)subsystem, (void)name;
    return NULL;
}

const char *udev_device_get_property_value(void *device, const char *key) {
    (void)device, (void)key;
    return NULL;
}

void *udev_device_unref(void *device) {
    (void)device;
    return NULL;
}
