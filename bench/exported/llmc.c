/* llmc.c - the training step of llm.c's GPT-2 as a peer of bench/exported.c: compiled with the folder
 * of its checkout on the include path (bench/exported/run.sh), with the sizes and the parameters of the model
 * that exported.c calls llmc. Its names for parameters are those of PyTorch's layers. */
#define TESTING /* no main */
#include "train_gpt2.c"

enum { BATCH = 12, CONTEXT = 64, VOCABULARY = 64, LAYERS = 4, HEADS = 4, WIDTH = 128 };

static GPT2 gpt = {.config = {.max_seq_len = CONTEXT,
                              .vocab_size = VOCABULARY,
                              .padded_vocab_size = VOCABULARY,
                              .num_layers = LAYERS,
                              .num_heads = HEADS,
                              .channels = WIDTH}};

/* Where the parameter of that name lies, of a block's the first block's. */
static float *find(const char *name)
{
    const ParameterTensors *p = &gpt.params;
    const struct {
        const char *name;
        float *at;
    } all[] = {{"token.weight", p->wte},
               {"position.weight", p->wpe},
               {"norm1.weight", p->ln1w},
               {"norm1.bias", p->ln1b},
               {"self_attn.in_proj_weight", p->qkvw},
               {"self_attn.in_proj_bias", p->qkvb},
               {"self_attn.out_proj.weight", p->attprojw},
               {"self_attn.out_proj.bias", p->attprojb},
               {"norm2.weight", p->ln2w},
               {"norm2.bias", p->ln2b},
               {"linear1.weight", p->fcw},
               {"linear1.bias", p->fcb},
               {"linear2.weight", p->fcprojw},
               {"linear2.bias", p->fcprojb},
               {"norm.weight", p->lnfw},
               {"norm.bias", p->lnfb}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!strcmp(all[i].name, name)) return all[i].at;
    fprintf(stderr, "llm.c has no %s\n", name);
    exit(1);
}

void peer_parameter(const char *name, const float *values, size_t count)
{
    int block = 0, length = 0;
    if (!gpt.params_memory) {
        fill_in_parameter_sizes(gpt.param_sizes, gpt.config);
        for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) gpt.num_parameters += gpt.param_sizes[i];
        gpt.params_memory = malloc_and_point_parameters(&gpt.params, gpt.param_sizes);
    }
    if (sscanf(name, "block.%d.%n", &block, &length) < 1) block = 0;
    memcpy(find(name + length) + (size_t)block * count, values, count * sizeof *values);
}

float peer_step(void *none, const void *tokens, const void *next)
{
    static int step;
    (void)none;
    gpt2_forward(&gpt, (int *)tokens, (int *)next, BATCH, CONTEXT);
    gpt2_zero_grad(&gpt);
    gpt2_backward(&gpt);
    gpt2_update(&gpt, 1e-3f, 0.9f, 0.999f, 1e-8f, 0.1f, ++step);
    return gpt.mean_loss;
}
