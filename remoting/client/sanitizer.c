/* Linked into what is preloaded. A program that was built with gcc's -fsanitize=address does not start where its runtime is not
 * the first library that was loaded, unless this function, which the runtime calls before it looks, tells it otherwise. What
 * the program and ASAN_OPTIONS say goes before. */
const char *__asan_default_options(void);

__attribute__((visibility("default"))) const char *__asan_default_options(void)
{
    return "verify_asan_link_order=0";
}
