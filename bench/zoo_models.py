"""zoo_models - the models of bench/zoo, written once for PyTorch and JAX.

A model is a function of m, which has the layers and operators of one framework, and of the inputs; the n-th layer
that it uses has the weights named "n" in the file that build/zoo has written. Weights are as PyTorch has them;
images are what suits the framework: [n, c, h, w] in channels_last, or [n, h, w, c]. zoo_torch.py and zoo_jax.py
have the layers, and say what the operators here mean.
"""
NEW_TOKENS, CONTEXT = 100, 256


def conv_norm(m, x, out, stride=1, groups=1):
    return m.batch_norm(m.conv(x, stride=stride, groups=groups))


def classify(m, x):
    return m.linear(m.global_pool(x))


def mnist_cnn(m, x):
    for _ in range(2):
        x = m.relu(m.batch_norm(m.conv(x)))
    return m.linear(m.relu(m.linear(m.flatten(m.max_pool(x)))))


def resnet20(m, x):
    width = 16
    x = m.relu(conv_norm(m, x, width))
    for stage in range(3):
        for _ in range(3):
            out = 16 << stage
            stride = 1 if out == width else 2
            h = m.relu(conv_norm(m, x, out, stride))
            h = conv_norm(m, h, out)
            x = m.relu(h + (x if out == width else conv_norm(m, x, out, stride)))
            width = out
    return classify(m, x)


def resnet50(m, x):
    x = m.max_pool(m.relu(conv_norm(m, x, 64, 2)))
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for k in range(blocks):
            stride = 2 if stage and not k else 1
            h = m.relu(conv_norm(m, x, width))
            h = m.relu(conv_norm(m, h, width, stride))
            h = conv_norm(m, h, 4 * width)
            x = m.relu(h + (x if k else conv_norm(m, x, 4 * width, stride)))
    return classify(m, x)


def unet(m, x):
    def twice(x):
        for _ in range(2):
            x = m.silu(m.group_norm(m.conv(x), 8))
        return x

    a = twice(x)
    b = twice(m.max_pool(a))
    c = twice(m.max_pool(b))
    b = twice(m.concat_channels([m.conv_transpose(c, stride=2), b]))
    a = twice(m.concat_channels([m.conv_transpose(b, stride=2), a]))
    return m.conv(a)


def mobilenet(m, x):
    width = 32
    x = m.relu(conv_norm(m, x, width))
    for out, stride in ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1)):
        x = m.relu(conv_norm(m, x, width, stride, groups=width))
        x = m.relu(conv_norm(m, x, out))
        width = out
    return classify(m, x)


def vit(m, x, dropout=0.0):
    x = m.tokens(m.conv(x, stride=4, pad=0))
    first, position = m.weight(), m.weight()
    x = m.concat([m.expand(first, (x.shape[0], 1, x.shape[2])), x], 1) + position
    for _ in range(6):
        x = m.block(x, 3, dropout=dropout)
    return m.linear(m.layer_norm(x)[:, 0])


def vit_dropout(m, x):
    return vit(m, x, 0.1)


def mixer(m, x):
    x = m.tokens(m.conv(x, stride=4, pad=0))
    for _ in range(4):
        h = m.linear(m.gelu(m.linear(m.transpose(m.layer_norm(x), 1, 2))))
        x = x + m.transpose(h, 1, 2)
        x = x + m.linear(m.gelu(m.linear(m.layer_norm(x))))
    return m.linear(m.layer_norm(x).mean(1))


def mlp(m, x):
    for _ in range(2):
        x = m.dropout(m.relu(m.batch_norm(m.linear(x))), 0.1)
    return m.linear(x)


def vae(m, image):
    x = m.relu(m.conv(image, stride=2))
    x = m.relu(m.conv(x, stride=2))
    code = m.linear(m.flatten(x))
    mean, log_var = code[:, :16], code[:, 16:]
    z = mean + m.exp(0.5 * log_var) * m.normal(mean) if m.training else mean
    x = m.image(m.relu(m.linear(z)), 7, 7, 64)
    x = m.relu(m.conv_transpose(x, stride=2, pad=1, output_pad=1))
    x = m.conv_transpose(x, stride=2, pad=1, output_pad=1)
    y = m.sigmoid(image)
    pixels = (m.softplus(x) - x * y).sum()
    return (pixels + 0.5 * (mean * mean + m.exp(log_var) - log_var - 1).sum()) / 64


def gpt(m, x, layers=6, heads=6):
    x, table = m.embedding(x)
    x = x + m.weight()
    for _ in range(layers):
        x = m.block(x, heads, causal=True)
    return m.layer_norm(x) @ table.T


def gpt_small(m, x):
    return gpt(m, x, 4, 4)


def gpt_large(m, x):
    return gpt(m, x, 12, 12)


def gpt_next(m, x, at, caches):
    """The logits behind token x at position `at`, and the caches [(k, v)] with its keys and values in them."""
    x, table = m.embedding(x)
    x = x + m.row(m.weight(), at)
    for i in range(6):
        x, caches[i] = m.cached_block(x, 6, caches[i], at)
    return m.layer_norm(x) @ table.T, caches


def llama(m, x):
    x, _ = m.embedding(x)
    for _ in range(4):
        h = m.rms_norm(x)
        q, k, v = (m.heads(m.linear(h), 4) for _ in range(3))
        h = m.attention(m.rotary(q), m.rotary(k), v, causal=True)
        x = x + m.linear(h)
        h = m.rms_norm(x)
        x = x + m.linear(m.silu(m.linear(h)) * m.linear(h))
    return m.linear(m.rms_norm(x))


def gru(m, x):
    x, _ = m.embedding(x)
    return m.linear(m.gru(x))


def lstm(m, x):
    x, _ = m.embedding(x)
    return m.linear(m.lstm(x))


def tcn(m, x):
    x = m.conv1d(m.sequence(x))
    for dilation in (1, 2, 4, 8, 16):
        h = m.relu(m.conv1d(x, dilation=dilation, past=2 * dilation))
        h = m.relu(m.conv1d(h, dilation=dilation, past=2 * dilation))
        x = m.relu(x + h)
    return m.from_sequence(m.conv1d(x))


def dlrm(m, index, dense):
    dense = m.relu(m.linear(m.relu(m.linear(dense))))
    rows, _ = m.embedding(index)
    z = m.concat([dense[:, None], rows], 1)
    x = m.concat([dense, (z @ m.transpose(z, 1, 2)).reshape(len(dense), -1)], 1)
    return m.linear(m.relu(m.linear(m.relu(m.linear(x)))))


# How a model's loss comes about, and what else bench/zoo's tables say of it.
SQUARES = {"unet", "tcn"}
OWN_LOSS = {"vae"}
RANDOM = {"vit_dropout", "mlp", "vae"}
RECURRENT = {"gru", "lstm"}
CLIPPED = {"gpt_small", "gpt", "gpt_large", "llama", "gru", "lstm"}
INFERENCE = {"resnet20_infer": resnet20, "vit_infer": vit}
GENERATION = {"gpt_generate"}
