/* types.c - the types of elements that files of numbers have: their names in safetensors and in NumPy's
 * format, and the dtype or nn_raw that holds them here. It stands alone, as readers do. Read tn_nn_types
 * first. */
#include "nn.h"

#include <string.h>

const nn_type tn_nn_types[NN_TYPES] = {
    {"F32", "f4", 4, TN_F32, NN_AS_IS},
    {"F16", "f2", 2, TN_F16, NN_AS_IS},
    {"BF16", "", 2, TN_BF16, NN_AS_IS},
    {"F64", "f8", 8, TN_F64, NN_AS_IS},
    {"I32", "i4", 4, TN_I32, NN_AS_IS},
    {"I64", "i8", 8, TN_I64, NN_AS_IS},
    {"U8", "u1", 1, TN_U8, NN_AS_IS},
    {"BOOL", "b1", 1, TN_BOOL, NN_AS_IS},
    {"I8", "i1", 1, TN_I32, NN_I8},
    {"I16", "i2", 2, TN_I32, NN_I16},
    {"U16", "u2", 2, TN_I32, NN_U16},
    {"U32", "u4", 4, TN_I64, NN_U32},
    {"U64", "u8", 8, TN_DTYPE_COUNT, NN_AS_IS},
    {"F8_E4M3", "", 1, TN_DTYPE_COUNT, NN_AS_IS},
    {"F8_E5M2", "", 1, TN_DTYPE_COUNT, NN_AS_IS},
};

const nn_type *tn_nn_type(const char *name)
{
    for (int i = 0; i < NN_TYPES; i++)
        if (!strcmp(tn_nn_types[i].name, name)) return &tn_nn_types[i];
    return NULL;
}

const nn_type *tn_nn_type_npy(const char *npy)
{
    for (int i = 0; i < NN_TYPES && *npy; i++)
        if (!strcmp(tn_nn_types[i].npy, npy)) return &tn_nn_types[i];
    return NULL;
}

const nn_type *tn_nn_type_of(tn_dtype d, nn_raw raw)
{
    for (int i = 0; i < NN_TYPES; i++)
        if (tn_nn_types[i].dtype == d && tn_nn_types[i].raw == raw) return &tn_nn_types[i];
    return NULL;
}
