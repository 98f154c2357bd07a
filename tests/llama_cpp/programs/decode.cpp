// Decodes greedily with llama.cpp: `decode MODEL STEPS LOGITS [none|layer|row|tensor] [TOKENS]`.
//
// Writes all logits of all steps to the file LOGITS, and prints the tokens. With TOKENS, a list with commas, these are
// taken in place of the most probable ones. On the CPU where DECODE_ON_CPU is set; with flash attention where DECODE_CACHE
// names the type of the keys and values that are kept: f16, q8_0, q4_0. DECODE_SEQUENCES says how many sequences are
// decoded together, each from the same prompt, of which the first one's logits and tokens are told (1). The milliseconds
// of each step are the last line of the error output.

#include "llama.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

static const int PROMPT = 16;

static std::vector<llama_token> listed(const char * text) {
    std::vector<llama_token> tokens;
    std::stringstream words(text);
    for (std::string word; std::getline(words, word, ',');) {
        tokens.push_back(std::stoi(word));
    }
    return tokens;
}

static llama_split_mode split_mode(const std::string & name) {
    return name == "layer"  ? LLAMA_SPLIT_MODE_LAYER
         : name == "row"    ? LLAMA_SPLIT_MODE_ROW
         : name == "tensor" ? LLAMA_SPLIT_MODE_TENSOR
                            : LLAMA_SPLIT_MODE_NONE;
}

static ggml_type type_named(const std::string & name) {
    for (int type = 0; type < GGML_TYPE_COUNT; type++) {
        const char * known = ggml_type_name(ggml_type(type));
        if (known && name == known) {
            return ggml_type(type);
        }
    }
    fprintf(stderr, "decode: DECODE_CACHE is %s, which is no type of values\n", name.c_str());
    exit(2);
}

// The same tokens for each sequence, from a position on; each sequence's last one asks for logits.
static llama_batch batch_of(const std::vector<llama_token> & tokens, int from, int sequences) {
    llama_batch batch = llama_batch_init(tokens.size() * sequences, 0, 1);
    for (int sequence = 0; sequence < sequences; sequence++) {
        for (size_t at = 0; at < tokens.size(); at++) {
            const int place = batch.n_tokens++;
            batch.token[place] = tokens[at];
            batch.pos[place] = from + at;
            batch.n_seq_id[place] = 1;
            batch.seq_id[place][0] = sequence;
            batch.logits[place] = at + 1 == tokens.size();
        }
    }
    return batch;
}

int main(int argc, char ** argv) {
    if (argc < 4) {
        fprintf(stderr, "decode MODEL STEPS LOGITS [none|layer|row|tensor] [TOKENS]\n");
        return 2;
    }
    const int steps = std::atoi(argv[2]);
    const bool on_cpu = getenv("DECODE_ON_CPU") != nullptr;
    llama_backend_init();
    if (!on_cpu && !llama_supports_gpu_offload()) {
        fprintf(stderr, "decode: no GPU\n");
        return 1;
    }
    ggml_backend_dev_t no_devices[] = {nullptr};
    llama_model_params of_model = llama_model_default_params();
    of_model.n_gpu_layers = on_cpu ? 0 : 99;
    of_model.devices = on_cpu ? no_devices : nullptr;
    of_model.split_mode = split_mode(argc > 4 ? argv[4] : "none");
    llama_model * model = llama_model_load_from_file(argv[1], of_model);
    llama_context_params asked = llama_context_default_params();
    const char * together = getenv("DECODE_SEQUENCES");
    const int sequences = together ? std::atoi(together) : 1;
    asked.n_ctx = 512 * sequences;
    asked.n_seq_max = sequences;
    asked.n_threads = asked.n_threads_batch = 2;
    asked.offload_kqv = asked.op_offload = !on_cpu;
    const char * cache = getenv("DECODE_CACHE");
    asked.flash_attn_type = cache ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    asked.type_k = asked.type_v = cache ? type_named(cache) : GGML_TYPE_F16;
    llama_context * context = model ? llama_init_from_model(model, asked) : nullptr;
    if (!context) {
        fprintf(stderr, "decode: no context for %s\n", argv[1]);
        return 1;
    }
    const int words = llama_vocab_n_tokens(llama_model_get_vocab(model));
    const std::vector<llama_token> forced = argc > 5 ? listed(argv[5]) : std::vector<llama_token>();
    std::vector<llama_token> next;
    for (int at = 0; at < PROMPT; at++) {
        next.push_back(300 + 7 * at % 200);
    }
    std::ofstream out(argv[3], std::ios::binary);
    std::string times;
    for (int step = 0, place = 0; step < steps; step++) {
        const llama_batch batch = batch_of(next, place, sequences);
        const auto begun = std::chrono::steady_clock::now();
        if (llama_decode(context, batch) != 0) {
            fprintf(stderr, "decode: step %d failed\n", step);
            return 1;
        }
        const float * logits = llama_get_logits_ith(context, next.size() - 1);
        const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begun;
        times += " " + std::to_string(took.count());
        place += next.size();
        llama_batch_free(batch);
        out.write(reinterpret_cast<const char *>(logits), sizeof(float) * words);
        next = {forced.empty() ? llama_token(std::max_element(logits, logits + words) - logits) : forced.at(step)};
        printf("%d%s", next[0], step + 1 < steps ? "," : "\n");
    }
    out.close();
    fprintf(stderr, "ms:%s\n", times.c_str());
    llama_free(context);
    llama_model_free(model);
    llama_backend_free();
    return out ? 0 : 1;
}
