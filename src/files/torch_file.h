/* Files of torch.save: pytorch_model.bin and its shards, read as a safetensors file is.
 *
 * FORMAT. A zip archive whose entries lie in one folder of any name:
 *   FOLDER/data.pkl     a pickle, protocol 2: a dict from names to tensors. A tensor names a storage, an
 *                       offset in it, a shape and strides, all in values.
 *   FOLDER/data/KEY     the storage KEY: numbers of one dtype. Several tensors may share a storage (tied
 *                       weights, views).
 *   FOLDER/byteorder    "little" or "big"; absent in older files, which are little-endian
 * torch.save stores entries as they are, without compression, so a storage is read in place through the map.
 * PyTorch before 1.6 wrote other formats. These are refused, with the cure.
 *
 * NO CODE RUNS. A pickle is a program for Python: it may name any function and call it. This reader
 * (torch_pickle.h) knows only the instructions, functions and classes that tensors in plain containers need,
 * the same that torch.load(weights_only=True) accepts for a dict of tensors. It builds values and calls
 * nothing. Anything else is refused by its name.
 *
 * CHECKS. Nothing in the file is trusted. Every entry must lie between the file's start and the directory of
 * the archive, no two entries overlap or share a name, and none that is read may be compressed or encrypted.
 * The bytes of data.pkl must have the entry's CRC. A storage has exactly the bytes of its count and dtype,
 * and the values of each tensor lie within its storage. The sizes of directory and pickle, and the number of
 * instructions, have limits; nothing recurses.
 *
 * A tensor whose values are not in row-major order is not readable (safetensors.h): the load refuses it if
 * the model needs it. */
#ifndef OT_FILES_TORCH_FILE_H
#define OT_FILES_TORCH_FILE_H

struct ot_safetensors;

/* The result is used and closed as one of ot_safetensors_open. Errors: OT_E_IO (cannot open or map),
 * OT_E_INPUT (the file is invalid, or is refused; the message names the file and the place), OT_E_BUDGET. */
int ot_torch_file_open(const char *path, struct ot_safetensors **out);

#endif
