/* Replaces libudev, which has no static library. hwloc's static library calls it for the names of disks, and
 * works without when udev_new returns NULL. This program does not ask hwloc for disks (see disk.h). Linked
 * only together with hwloc's static library. */
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
