/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * export.bpf.h - brings a type of bpf/abi/ to Rust that no map's value and no
 * global variable has: a record of a ring buffer or of an iterator.
 *
 * libbpf-cargo makes Rust types of what the object's BTF describes, and clang
 * describes what a variable has. These variables stand in sections that
 * libbpf does not load: no program and no map knows them. A section each, as
 * clang 16 cannot pad such a section between two variables.
 */
#ifndef WEIR_EXPORT_BPF_H
#define WEIR_EXPORT_BPF_H

#include "lib/kernel.h"

#define EXPORT_TYPE(kind, name) kind name exported_##name SEC(".abi." #name)

#endif
